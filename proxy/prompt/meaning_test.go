package prompt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// doc is a random request. keep marks objects whose member order matters; texts are leaves that
// matter.
type doc struct {
	rnd   *rand.Rand
	kind  Kind
	root  *node
	keep  map[*node]bool
	texts []*node
}

func newDoc(rnd *rand.Rand) *doc {
	d := &doc{rnd: rnd, kind: Kind(1 + rnd.IntN(int(kinds)-1)), keep: map[*node]bool{}}
	d.root = obj("model", d.text())
	switch d.kind {
	case Chat:
		d.conversation()
	case Completion:
		d.root.put("prompt", d.prompt())
	case Responses:
		if d.maybe() {
			d.root.put("instructions", d.text())
		}
		d.root.put("input", d.items())
		d.root.put("tools", d.many(d.flatTool))
	case Embeddings, Pooling:
		if d.maybe() {
			d.root.put("input", d.prompt())
		} else {
			d.conversation()
		}
	case Messages, CountTokens:
		d.anthropic()
	case Generate:
		if d.maybe() {
			d.root.put("text", d.text())
			d.root.put("image_data", arr(d.text()))
		} else {
			d.root.put("input_ids", d.ids())
		}
		d.root.put("lora_path", d.text())
	case Tokenize:
		if d.maybe() {
			d.root.put("prompt", d.text())
		} else {
			d.conversation()
		}
	case Detokenize:
		d.root.put("tokens", d.ids())
	case Score:
		d.root.put("text_1", d.prompt())
		d.root.put("text_2", d.prompt())
	case Rerank:
		d.root.put("query", d.text())
		d.root.put("documents", arr(d.text(), obj("text", d.text())))
	}
	return d
}

func (d *doc) maybe() bool { return d.rnd.IntN(2) == 0 }

func str(s string) *node { return &node{kind: '"', text: s} }
func num(s string) *node { return &node{kind: '0', text: s} }
func arr(items ...*node) *node {
	return &node{kind: '[', items: items}
}

func obj(members ...any) *node {
	n := &node{kind: '{'}
	for i := 0; i < len(members); i += 2 {
		switch v := members[i+1].(type) {
		case *node:
			n.put(members[i].(string), v)
		case string:
			n.put(members[i].(string), str(v))
		}
	}
	return n
}

var alphabet = []rune("abcXYZ 012\"\\/\n\t\r\b\f\x00\x1f\x7fé€漢字😀\u2028\ufffd{}[]:,u")

func (d *doc) text() *node {
	n := d.rnd.IntN(12) + 1
	if d.rnd.IntN(8) == 0 {
		n *= 20
	}
	var b strings.Builder
	for range n {
		b.WriteRune(alphabet[d.rnd.IntN(len(alphabet))])
	}
	leaf := str(b.String())
	d.texts = append(d.texts, leaf)
	return leaf
}

func (d *doc) many(one func() *node) *node {
	a := arr()
	for range d.rnd.IntN(4) {
		a.items = append(a.items, one())
	}
	return a
}

func (d *doc) ids() *node {
	return d.many(func() *node { return num(fmt.Sprint(d.rnd.IntN(1 << 18))) })
}

func (d *doc) prompt() *node {
	switch d.rnd.IntN(4) {
	case 0:
		return d.text()
	case 1:
		return d.many(d.text)
	case 2:
		return d.ids()
	}
	return d.many(d.ids)
}

func (d *doc) conversation() {
	d.root.put("messages", d.many(d.chatMessage))
	if d.maybe() {
		d.root.put("tools", d.many(d.chatTool))
	}
	if d.rnd.IntN(4) == 0 {
		d.root.put("chat_template_kwargs", obj("enable_thinking", &node{kind: 't'}, "x", d.text()))
	}
	if d.rnd.IntN(4) == 0 {
		d.root.put("cache_salt", d.text())
	}
}

func (d *doc) chatMessage() *node {
	switch d.rnd.IntN(4) {
	case 0:
		return obj("role", "assistant", "content", &node{kind: 'n'}, "tool_calls", d.many(func() *node {
			return obj("id", d.text(), "type", "function", "function", obj("name", d.text(), "arguments", d.text()))
		}))
	case 1:
		return obj("role", "tool", "tool_call_id", d.text(), "content", d.content(d.chatPart))
	}
	m := obj("role", []string{"system", "user", "assistant", "developer"}[d.rnd.IntN(4)], "content", d.content(d.chatPart))
	if d.rnd.IntN(4) == 0 {
		m.put("reasoning_content", d.text())
	}
	return m
}

func (d *doc) content(part func() *node) *node {
	if d.maybe() {
		return d.text()
	}
	return d.many(part)
}

func (d *doc) textPart() *node { return obj("type", "text", "text", d.text()) }

func (d *doc) chatPart() *node {
	switch d.rnd.IntN(4) {
	case 0:
		return obj("type", "image_url", "image_url", obj("url", d.text()))
	case 1:
		return obj("type", "input_audio", "input_audio", obj("data", d.text(), "format", "wav"))
	}
	return d.textPart()
}

// The order of members matters.
func (d *doc) schema() *node {
	s := obj("type", "object", "properties", obj("a", obj("type", "string", "description", d.text()), "b", obj("maximum", num("1.50"))))
	d.keepAll(s)
	return s
}

func (d *doc) keepAll(n *node) {
	if n.kind == '{' {
		d.keep[n] = true
	}
	for _, it := range n.items {
		d.keepAll(it)
	}
}

func (d *doc) chatTool() *node {
	return obj("type", "function", "function", obj("name", d.text(), "description", d.text(), "parameters", d.schema()))
}

func (d *doc) flatTool() *node {
	return obj("type", "function", "name", d.text(), "parameters", d.schema())
}

func (d *doc) items() *node {
	if d.maybe() {
		return d.text()
	}
	return d.many(func() *node {
		switch d.rnd.IntN(4) {
		case 0:
			return obj("type", "function_call", "call_id", d.text(), "name", d.text(), "arguments", d.text())
		case 1:
			return obj("type", "function_call_output", "call_id", d.text(), "output", d.text())
		case 2:
			return obj("type", "reasoning", "summary", arr(obj("type", "summary_text", "text", d.text())))
		}
		return obj("role", "user", "content", d.content(func() *node { return obj("type", "input_text", "text", d.text()) }))
	})
}

func (d *doc) anthropic() {
	if d.maybe() {
		d.root.put("system", d.content(d.textPart))
	}
	d.root.put("messages", d.many(func() *node {
		return obj("role", []string{"user", "assistant"}[d.rnd.IntN(2)], "content", d.content(d.block))
	}))
	d.root.put("tools", d.many(func() *node { return obj("name", d.text(), "input_schema", d.schema()) }))
}

func (d *doc) block() *node {
	switch d.rnd.IntN(5) {
	case 0:
		input := obj("q", d.text(), "n", num("3"))
		d.keepAll(input)
		return obj("type", "tool_use", "id", d.text(), "name", d.text(), "input", input)
	case 1:
		return obj("type", "tool_result", "tool_use_id", d.text(), "content", d.content(d.textPart))
	case 2:
		return obj("type", "image", "source", obj("type", "base64", "media_type", "image/png", "data", d.text()))
	case 3:
		return obj("type", "thinking", "thinking", d.text())
	}
	return d.textPart()
}

// write chooses one of the equivalent encodings.
func (d *doc) write() []byte {
	var b bytes.Buffer
	root := *d.root
	root.names, root.items = append([]string(nil), root.names...), append([]*node(nil), root.items...)
	for _, extra := range []string{"temperature", "seed", "user", "stream"} {
		if d.maybe() {
			root.names, root.items = append(root.names, extra), append(root.items, num(fmt.Sprint(d.rnd.IntN(9))))
		}
	}
	d.encode(&b, &root, "")
	return b.Bytes()
}

func (d *doc) space(b *bytes.Buffer) {
	for d.rnd.IntN(6) == 0 {
		b.WriteByte(" \n\t\r"[d.rnd.IntN(4)])
	}
}

func (d *doc) encode(b *bytes.Buffer, n *node, name string) {
	d.space(b)
	defer d.space(b)
	switch n.kind {
	case '"':
		if name == "content" && d.rnd.IntN(3) == 0 {
			d.encode(b, arr(obj("type", "text", "text", n)), "")
			return
		}
		d.quote(b, n.text)
	case '0':
		b.WriteString(n.text)
	case 't':
		b.WriteString("true")
	case 'f':
		b.WriteString("false")
	case 'n':
		b.WriteString("null")
	case '[':
		b.WriteByte('[')
		for i, it := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			d.encode(b, it, "")
		}
		d.space(b)
		b.WriteByte(']')
	case '{':
		d.object(b, n)
	}
}

func (d *doc) object(b *bytes.Buffer, n *node) {
	order := d.rnd.Perm(len(n.names))
	if d.keep[n] {
		for i := range order {
			order[i] = i
		}
	}
	b.WriteByte('{')
	first := true
	one := func(name string, v *node) {
		if !first {
			b.WriteByte(',')
		}
		first = false
		d.space(b)
		d.quote(b, name)
		d.space(b)
		b.WriteByte(':')
		d.encode(b, v, name)
	}
	for _, i := range order {
		if d.rnd.IntN(8) == 0 { // an earlier duplicate does not count
			one(n.names[i], []*node{num("7"), {kind: 'n'}, str("no"), arr(str("x")), obj("y", "z")}[d.rnd.IntN(5)])
		}
		one(n.names[i], n.items[i])
	}
	if d.kind != Responses && d.rnd.IntN(4) == 0 && (n.get("text") != nil || n.get("tool_use_id") != nil) && n.get("type") != nil {
		one("cache_control", obj("type", "ephemeral"))
	}
	d.space(b)
	b.WriteByte('}')
}

func (d *doc) quote(b *bytes.Buffer, s string) {
	escape := d.rnd.IntN(8) + 1
	b.WriteByte('"')
	for _, r := range s {
		short := strings.IndexRune("\"\\/\n\t\r\b\f", r)
		switch {
		case short >= 0 && (r != '/' || d.maybe()) && d.rnd.IntN(4) > 0:
			b.WriteByte('\\')
			b.WriteByte(`"\/ntrbf`[short])
		case r == '"' || r == '\\' || r < ' ' || d.rnd.IntN(escape+1) == 0:
			form := `\u%04x`
			if d.maybe() {
				form = `\u%04X`
			}
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(b, form, u)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

func docOf(t *rapid.T) *doc {
	seed := rapid.Uint64().Draw(t, "seed")
	return newDoc(rand.New(rand.NewPCG(seed, 1)))
}

// Two encodings of a request have equal prompt bytes, and the reference's.
func TestSameMeaning(t *testing.T) {
	p := newTestParser(t)
	rapid.Check(t, func(t *rapid.T) {
		d := docOf(t)
		one, two := d.write(), d.write()
		a, err := p.PromptBytes(d.kind, one)
		if err != nil {
			t.Fatalf("%v %q: %v", d.kind, one, err)
		}
		b, err := p.PromptBytes(d.kind, two)
		if err != nil {
			t.Fatalf("%v %q: %v", d.kind, two, err)
		}
		if !bytes.Equal(a, b) {
			t.Fatalf("%v\n%q\n%q\nas\n%q\n%q", d.kind, one, two, a, b)
		}
		if want, err := reference(d.kind, one); err != nil || !bytes.Equal(a, want) {
			t.Fatalf("%v %q\ngot  %q\nwant %q (%v)", d.kind, one, a, want, err)
		}
	})
}

// A changed leaf changes the bytes and, beyond one block, the hashes.
func TestOtherMeaning(t *testing.T) {
	p := newTestParser(t)
	rapid.Check(t, func(t *rapid.T) {
		d := docOf(t)
		before, err := p.PromptBytes(d.kind, d.write())
		if err != nil {
			t.Fatal(err)
		}
		if len(d.texts) == 0 {
			return
		}
		leaf := d.texts[rapid.IntRange(0, len(d.texts)-1).Draw(t, "leaf")]
		old := leaf.text
		switch rapid.IntRange(0, 2).Draw(t, "change") {
		case 0:
			leaf.text += "x"
		case 1:
			leaf.text = `\` + leaf.text
		case 2:
			leaf.text = leaf.text[:len(leaf.text)/2] + "\x0fy\x0e" + strings.ToValidUTF8(leaf.text[len(leaf.text)/2:], "?")
			leaf.text = strings.ToValidUTF8(leaf.text, "?")
		}
		body := d.write()
		after, err := p.PromptBytes(d.kind, body)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if bytes.Equal(before, after) {
			t.Fatalf("%v %q: %q -> %q changes nothing", d.kind, body, old, leaf.text)
		}
	})
}

func TestPrefix(t *testing.T) {
	p := newTestParser(t)
	var r Request
	rapid.Check(t, func(t *rapid.T) {
		d := docOf(t)
		var list *node
		last := d.text()
		switch d.kind {
		case Chat, Messages, CountTokens:
			list = d.root.get("messages")
		case Responses:
			if list = d.root.get("input"); list.kind != '[' {
				list = arr()
				d.root.put("input", list)
			}
		default:
			return
		}
		list.items = append(list.items, obj("role", "user", "content", last))
		var steps [][]byte
		var hashes int
		for step := range 4 {
			body := d.write()
			b, err := p.PromptBytes(d.kind, body)
			if err != nil {
				t.Fatal(err)
			}
			if step > 0 && !bytes.HasPrefix(b, steps[step-1]) {
				t.Fatalf("%v %q\n%q\nis no prefix of\n%q", d.kind, body, steps[step-1], b)
			}
			if err := p.Parse(d.kind, body, Options{}, &r); err != nil || len(r.Hashes) < hashes {
				t.Fatalf("%v, %d hashes after %d", err, len(r.Hashes), hashes)
			}
			hashes = len(r.Hashes)
			steps = append(steps, b)
			if step%2 == 0 {
				last.text += d.text().text
			} else {
				last = d.text()
				list.items = append(list.items, obj("role", "user", "content", last))
			}
		}
	})
}

// Trees of known names with values of any type.
func TestWild(t *testing.T) {
	p := newTestParser(t)
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		d := &doc{rnd: rand.New(rand.NewPCG(seed, 2)), keep: map[*node]bool{}}
		root := d.wild(0)
		root.kind = '{'
		root.names = root.names[:0]
		for range root.items {
			root.names = append(root.names, wildNames[d.rnd.IntN(len(wildNames))])
		}
		d.keepAll(root) // the reference does not know which orders matter
		var b bytes.Buffer
		d.encode(&b, root, "")
		for range 3 {
			checkAgainstReference(t, p, Kind(1+d.rnd.IntN(int(kinds)-1)), b.Bytes())
		}
	})
}

var wildNames = func() (names []string) {
	seen := map[string]bool{}
	for _, m := range append([]map[string]field{common}, perKind[:]...) {
		for name := range m {
			seen[name] = true
		}
	}
	for _, name := range strings.Fields(`type text refusal thinking id tool_use_id name is_error input content cache_control
		signature image_url video_url url detail source data role tool_calls tool_call_id function_call reasoning
		reasoning_content audio function custom arguments parameters input_schema description strict call_id output status
		summary a b`) {
		seen[name] = true
	}
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names) // so that a seed repeats
	return names
}()

func (d *doc) wild(depth int) *node {
	n := d.rnd.IntN(10)
	if depth == 0 {
		n = 9
	}
	if depth > 4 {
		n %= 6
	}
	switch n {
	case 0:
		return &node{kind: "tfn"[d.rnd.IntN(3)]}
	case 1:
		return num([]string{"0", "-0", "1", "1.0", "2e3", "1e999", "-5", "123456789", "999999999", "12345678901234567890"}[d.rnd.IntN(10)])
	case 2:
		return str([]string{"", "text", "image_url", "function", "auto", "none", "tool_use", "tool_result", "refusal",
			"thinking", "message", "function_call", "function_call_output", "x", billing}[d.rnd.IntN(15)])
	case 3, 4, 5:
		return d.text()
	case 6, 7:
		return d.many(func() *node { return d.wild(depth + 1) })
	}
	o := &node{kind: '{'}
	for range d.rnd.IntN(10) {
		o.names = append(o.names, wildNames[d.rnd.IntN(len(wildNames))])
		o.items = append(o.items, d.wild(depth+1))
	}
	return o
}
