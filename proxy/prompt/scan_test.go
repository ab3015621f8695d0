package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func hopNaive(b []byte, i int) int {
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c == '\\':
			if i+1 >= len(b) || !strings.ContainsRune(`"\bfnrt`, rune(b[i+1])) {
				return i
			}
			i++
		case c < ' ', c >= 0x80, c == '"':
			return i
		}
	}
	return i
}

func checkHop(t *testing.T, b []byte) {
	t.Helper()
	for i := 0; i <= len(b); i++ {
		want := hopNaive(b, i)
		if got := hop(b, i); got != want {
			t.Fatalf("hop(%q, %d) = %d, want %d", b, i, got, want)
		}
		if got := hopWords(b, i); got != want {
			t.Fatalf("hopWords(%q, %d) = %d, want %d", b, i, got, want)
		}
	}
}

func TestHop(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	// Runs of backslashes cross words and blocks.
	for _, alphabet := range []string{"", `a\`, `\\\\\\\n`, `\"`, `aaaaaaaaaaaaaaaaaaaaaaaaa\n`, "abcdefghij\\\\nrtbf#]!", "a\\\x00\x1f\x20\x7f\x80\xff\"/u"} {
		for range 150 {
			b := make([]byte, rnd.IntN(200))
			for i := range b {
				if alphabet == "" {
					b[i] = byte(rnd.Uint32())
				} else {
					b[i] = alphabet[rnd.IntN(len(alphabet))]
				}
			}
			checkHop(t, b)
		}
	}
}

// Backslashes across every boundary.
func TestHopBlockEnds(t *testing.T) {
	for run := range 6 {
		for at := range 140 {
			for _, end := range []string{`"`, `n`, `u`, "\x00", "\xff"} {
				b := []byte(strings.Repeat("a", at) + strings.Repeat(`\`, run) + end + strings.Repeat("a", 70) + `"`)
				if got, want := hop(b, 0), hopNaive(b, 0); got != want {
					t.Fatalf("hop(%q) = %d, want %d", b, got, want)
				}
				if got, want := hopWords(b, 0), hopNaive(b, 0); got != want {
					t.Fatalf("hopWords(%q) = %d, want %d", b, got, want)
				}
			}
		}
	}
}

func FuzzHop(f *testing.F) {
	f.Add([]byte(`plain text \n and \\ more \" text that is longer than one block of 64 bytes \\\\\\\u`))
	f.Fuzz(func(t *testing.T, b []byte) { checkHop(t, b) })
}

// Errors name the offset, and prefixes do not panic.
func TestRefused(t *testing.T) {
	p := newTestParser(t)
	deep := strings.Repeat(`{"a":`, MaxDepth) + "1" + strings.Repeat("}", MaxDepth)
	deeper := strings.Repeat(`{"a":`, MaxDepth+1) + "1" + strings.Repeat("}", MaxDepth+1)
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		body   string
		offset int // -1 means accepted
	}{
		{`{}`, -1},
		{deep, -1},
		{deeper, MaxDepth * 5},
		{``, 0},
		{`null`, 0},
		{`[{}]`, 0},
		{"\xef\xbb\xbf{}", 0},
		{`{"a":1}}`, 7},
		{`{"a":1`, 6},
		{`{"a" 1}`, 5},
		{`{"a":}`, 5},
		{`{"a":1,}`, 7},
		{`{,}`, 1},
		{`{"a":[1,]}`, 8},
		{`{"a":[1 2]}`, 8},
		{`{"a":tru}`, 5},
		{`{"a":NaN}`, 5},
		{`{"a":-Infinity}`, 5},
		{`{"a":01}`, 5},
		{`{"a":+1}`, 5},
		{`{"a":1.}`, 7},
		{`{"a":1e}`, 7},
		{`{"a":.5}`, 5},
		{`{'a':1}`, 1},
		{`{"a":"` + long + "\n" + long + `"}`, 106},
		{`{"a":"` + long + "\xff" + long + `"}`, 106},
		{`{"a":"` + long + "\xed\xa0\x80" + long + `"}`, 106},
		{`{"a":"` + long + "\xc0\xaf" + long + `"}`, 106},
		{`{"a":"` + long + `\x` + long + `"}`, 106},
		{`{"a":"` + long + `\ud800` + long + `"}`, 106},
		{`{"a":"` + long + `\ud800\u0041"}`, 106},
		{`{"a":"` + long + `\udc00"}`, 106},
		{`{"a":"` + long + `\u12g4"}`, 106},
		{`{"\ud800":1}`, 2},
		{"{\"a\":1}\x00", 7},
	} {
		_, err := p.PromptBytes(Chat, []byte(c.body))
		var e *Error
		switch {
		case c.offset < 0 && err != nil, c.offset >= 0 && !errors.As(err, &e):
			t.Errorf("%.40q: error %v", c.body, err)
		case e != nil && e.Offset != c.offset:
			t.Errorf("%.40q: %v, want offset %d", c.body, err, c.offset)
		}
		for i := range c.body {
			if _, err := p.PromptBytes(Chat, []byte(c.body[:i])); err == nil && !json.Valid([]byte(c.body[:i])) {
				t.Errorf("%.40q: accepted", c.body[:i])
			}
		}
	}
}

func TestTooLong(t *testing.T) {
	p := newTestParser(t)
	var r Request
	err := p.Parse(Chat, make([]byte, MaxBody+1), Options{}, &r)
	var e *Error
	if !errors.As(err, &e) || e.Offset != MaxBody {
		t.Fatal(err)
	}
}

// Scratch is linear in hostile bodies too, and a parser does not keep it.
func TestScratch(t *testing.T) {
	const size = 256 << 10
	repeat := func(head, unit, tail string) []byte {
		n := (size - len(head) - len(tail)) / len(unit)
		return []byte(head + strings.Repeat(unit, n) + tail)
	}
	members := func(head, tail string, name func(i int) string) []byte {
		var b bytes.Buffer
		b.WriteString(head)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%s":0`, name(i))
		}
		b.WriteString(tail)
		return b.Bytes()
	}
	distinct := func(i int) string { return fmt.Sprint(i) }
	for name, c := range map[string]struct {
		kind Kind
		body []byte
		fail bool
	}{
		"slashes":      {Chat, repeat(`{"messages":[{"content":"`, `\/`, `"}]}`), false},
		"quotes":       {Chat, repeat(`{"messages":[{"content":"`, `\"`, `"}]}`), false},
		"escaped":      {Chat, repeat(`{"messages":[{"content":"`, `\u6f22`, `"}]}`), false},
		"long slashes": {Chat, repeat(`{"messages":[{"content":"`, strings.Repeat("x", 64)+`\/`, `"}]}`), false},
		"messages":     {Chat, repeat(`{"messages":[`, `{},`, `{}]}`), false},
		"parts":        {Chat, repeat(`{"messages":[{"content":[`, `{},`, `{}]}]}`), false},
		"tools":        {Chat, repeat(`{"tools":[`, `{},`, `{}]}`), false},
		"ids":          {Completion, repeat(`{"prompt":[`, `0,`, `0]}`), false},
		"arrays":       {Completion, repeat(`{"prompt":[`, `[],`, `[]]}`), false},
		"duplicates":   {Chat, members(`{"tools":[{"parameters":{`, `}}]}`, func(int) string { return "a" }), false},
		"schema":       {Chat, members(`{"tools":[{"parameters":{`, `}}]}`, distinct), false},
		"body":         {Chat, members(`{`, `}`, distinct), false},
		"sorted":       {Chat, members(`{"chat_template_kwargs":{`, `}}`, distinct), true},
		"slots":        {Chat, repeat(`{"messages":[{`, `"content":"x","role":"user",`, `"name":"x"}]}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestParser(t)
			_, err := p.PromptBytes(c.kind, c.body)
			if (err != nil) != c.fail {
				t.Fatal(err)
			}
			scratch := cap(p.tape.arena) + 8*cap(p.tape.ops) + 8*cap(p.tape.moved) + 48*cap(p.members) + 16*cap(p.spans) + 4*cap(p.table)
			if scratch > 24*size {
				t.Errorf("%d bytes of scratch for each of the body", scratch/size)
			}
			p.PromptBytes(Chat, []byte(`{}`))
			if kept := cap(p.tape.arena) + 8*cap(p.tape.ops) + 8*cap(p.tape.moved); kept > keepBytes {
				t.Errorf("keeps %d bytes", kept)
			}
		})
	}
}
