package prompt_test

import (
	"fmt"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/prompt"
)

func sketchOf(t testing.TB, k prompt.Kind, body string, o prompt.Options) prompt.Sketch {
	t.Helper()
	h, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	p := prompt.NewParser(h)
	var r prompt.Request
	if err := p.Parse(k, []byte(body), o, &r); err != nil {
		t.Fatal(err)
	}
	s := prompt.Sketch{Seed: 7}
	p.Sketch(&s)
	if s.Bytes != r.PromptBytes {
		t.Errorf("the sketch is of %d bytes, the prompt has %d", s.Bytes, r.PromptBytes)
	}
	return s
}

func prose(from, words int) string {
	var b strings.Builder
	for i := range words {
		fmt.Fprintf(&b, "word%d ", (from+i)*7919%100003)
	}
	return b.String()
}

// Fields and sums of chunks follow the body, whatever its members' order.
func TestSketchFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind prompt.Kind
		body string
		want string // fields in order
	}{
		{prompt.Chat, `{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],
			"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"cache_salt":"s"}`,
			"cache_salt,tools,system,first user message,later messages"},
		{prompt.Messages, `{"system":"be kind","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, "system,first user message"},
		{prompt.Completion, `{"prompt":"once"}`, "prompt"},
		{prompt.Chat, `{"messages":[{"role":"assistant","content":"hello"},{"role":"user","content":"a"}],"chat_template_kwargs":{"a":1}}`, "settings,system,first user message"},
	} {
		s := sketchOf(t, c.kind, c.body, prompt.Options{})
		var got []string
		sum := 0
		for _, k := range s.Chunks {
			if sum += int(k.Bytes); len(got) == 0 || got[len(got)-1] != k.Field.String() {
				got = append(got, k.Field.String())
			}
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("fields %q, want %q of %s", got, c.want, c.body)
		}
		if sum != s.Bytes {
			t.Errorf("the chunks have %d bytes, the prompt %d", sum, s.Bytes)
		}
	}
}

// Behind an insertion, the chunks of long texts are the same again; what is before it is the same to within a chunk.
func TestSketchAfterInsertion(t *testing.T) {
	t.Parallel()
	text := prose(0, 3000)
	chat := func(system string) prompt.Sketch {
		return sketchOf(t, prompt.Chat, `{"messages":[{"role":"system","content":"`+system+`"}]}`, prompt.Options{})
	}
	a, b := chat(text[:4000]+"10:59:01"+text[4000:]), chat(text[:4000]+"tomorrow at 11"+text[4000:])
	begin := 0
	i := 0
	for ; a.Chunks[i] == b.Chunks[i]; i++ {
		begin += int(a.Chunks[i].Bytes)
	}
	if begin > 4010 || begin < 4000-prompt.MaxChunk {
		t.Errorf("the first %d bytes are the same, want 4,000 less a chunk", begin)
	}
	known := make(map[uint32]bool)
	for _, c := range a.Chunks[i:] {
		known[c.Hash] = true
	}
	again, all := 0, 0
	for _, c := range b.Chunks[i:] {
		if all += int(c.Bytes); known[c.Hash] {
			again += int(c.Bytes)
		}
	}
	if all-again > 2*prompt.MaxChunk {
		t.Errorf("%d of %d bytes behind the insertion are the same again", again, all)
	}
}

func TestSketchIsBounded(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"long":  `{"prompt":"` + prose(0, 100_000) + `"}`,
		"short": `{"prompt":["` + strings.Repeat(`a","`, 20_000) + `"]}`,
		"role":  `{"messages":[{"role":"` + prose(0, 1000) + `","content":"a"}]}`,
	} {
		kind := prompt.Completion
		if name == "role" {
			kind = prompt.Chat
		}
		s := sketchOf(t, kind, body, prompt.Options{})
		sum := 0
		for _, c := range s.Chunks {
			sum += int(c.Bytes)
		}
		if len(s.Chunks) > prompt.SketchChunks || sum > prompt.SketchBytes || len(s.Chunks) == 0 {
			t.Errorf("%s: %d chunks of %d bytes", name, len(s.Chunks), sum)
		}
	}
}

// Salts differ in a chunk of their own, tenants and adapters in the root.
func TestSketchRoots(t *testing.T) {
	t.Parallel()
	body := func(more string) string { return `{"prompt":"once upon a time"` + more + `}` }
	plain := sketchOf(t, prompt.Completion, body(""), prompt.Options{})
	salted := sketchOf(t, prompt.Completion, body(`,"cache_salt":"a"`), prompt.Options{})
	adapted := sketchOf(t, prompt.Completion, body(`,"lora_path":"a"`), prompt.Options{})
	tenant := sketchOf(t, prompt.Completion, body(""), prompt.Options{Tenant: []byte("a")})
	switch {
	case salted.Root != plain.Root || len(salted.Chunks) != len(plain.Chunks)+1 || salted.Chunks[0].Field != prompt.FieldSalt:
		t.Errorf("a salt is not a chunk of its own: %v, %v", plain, salted)
	case adapted.Root == plain.Root || tenant.Root == plain.Root || adapted.Root == tenant.Root:
		t.Errorf("roots %x, %x, %x do not differ", plain.Root, adapted.Root, tenant.Root)
	}
}

// The cost of a sketch, and of the parse before it.
func BenchmarkSketch(b *testing.B) {
	h, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	if err != nil {
		b.Fatal(err)
	}
	for _, kB := range []int{8, 64, 256} {
		body := []byte(`{"messages":[{"role":"user","content":"` + prose(0, kB<<10)[:kB<<10] + `"}]}`)
		p := prompt.NewParser(h)
		var r prompt.Request
		if err := p.Parse(prompt.Chat, body, prompt.Options{}, &r); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("prompt=%dkB", kB), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				s := prompt.Sketch{Seed: 7}
				p.Sketch(&s)
			}
		})
	}
}
