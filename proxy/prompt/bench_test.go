package prompt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
)

// benchBody is a chat in 32 messages, with an escape every 25 bytes and a quote every 150.
func benchBody(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	words := []string{"the", "engine", "return", "prefix", "block", "cache", "if err != nil {", "router", "of", "and",
		"func", "request", "token", "with", "a", "is", "not", "value", "state", "which"}
	rare := []string{`"key": "value"`, `fmt.Println("x")`, `\d+`, "naïve"}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var body struct {
		Model       string    `json:"model"`
		Stream      bool      `json:"stream"`
		Temperature float64   `json:"temperature"`
		Messages    []message `json:"messages"`
	}
	body.Model, body.Stream, body.Temperature = "meta-llama/Llama-3.3-70B-Instruct", true, 0.7
	roles := []string{"user", "assistant"}
	for i := range 32 {
		var text bytes.Buffer
		line := 0
		for text.Len() < size/33-16 {
			w := words[rnd.IntN(len(words))]
			if rnd.IntN(50) == 0 {
				w = rare[rnd.IntN(len(rare))]
			}
			text.WriteString(w)
			if line += len(w) + 1; line > 30 {
				text.WriteString("\n\t"[:1+rnd.IntN(2)])
				line = 0
			} else {
				text.WriteByte(' ')
			}
		}
		body.Messages = append(body.Messages, message{roles[i%2], text.String()})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(out.Bytes())
}

var benchSizes = []int{1, 16, 128} // KiB

func newTestParser(tb testing.TB) *Parser {
	tb.Helper()
	h, err := prefixtree.NewHasher([]byte("a secret of the fleet, 32 bytes."), prefixtree.DefaultBlockBytes)
	if err != nil {
		tb.Fatal(err)
	}
	return NewParser(h)
}

func BenchmarkParse(b *testing.B) {
	for _, kib := range benchSizes {
		b.Run(fmt.Sprintf("chat/%dKiB", kib), func(b *testing.B) {
			body := benchBody(kib << 10)
			p := newTestParser(b)
			var r Request
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(Chat, body, Options{}, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHop(b *testing.B) {
	body := benchBody(128 << 10)
	for name, hop := range map[string]func([]byte, int) int{"blocks": hop, "words": hopWords} {
		b.Run(name+"/128KiB", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				for i := 0; i < len(body); {
					if i = hop(body, i); i < len(body) {
						i++
					}
				}
			}
		})
	}
}

// Harder bodies: non-ASCII text, \u escapes, code, an agent's request.
func BenchmarkShapes(b *testing.B) {
	const size = 128 << 10
	chat := func(text string) []byte {
		return []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat(text, size/len(text)) + `"}]}`)
	}
	tool := `{"name":"read_file","description":"Reads a file.\n\nGive its path.","input_schema":{"type":"object","properties":` +
		`{"path":{"type":"string","description":"The path of the file"},"limit":{"type":"integer","minimum":1}},"required":["path"]}}`
	block := `{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01","content":[{"type":"text","text":"` +
		strings.Repeat(`func f() {\n\treturn \"x\"\n}\n`, 100) + `"}]}]}`
	agent := `{"model":"m","messages":[` + strings.Repeat(block+",", 30) + block + `],"tools":[` + strings.Repeat(tool+",", 30) + tool +
		`],"system":[{"type":"text","text":"` + strings.Repeat("You are an agent. ", 500) + `","cache_control":{"type":"ephemeral"}}],"stream":true}`
	for _, c := range []struct {
		name string
		kind Kind
		body []byte
	}{
		{"chinese", Chat, chat("路由器把请求送到已经缓存的地方。")},
		{"chinese-escaped", Chat, chat(`\u8def\u7531\u5668`)},
		{"french", Chat, chat("La mémoire cache a déjà été remplie à moitié, où est le problème ? ")},
		{"code", Chat, chat(`if err != nil {\n\t\treturn err\n\t}\n\t`)},
		{"agent", Messages, []byte(agent)},
		{"ids", Completion, []byte(`{"prompt":[` + strings.Repeat("12345, 678, 90123, ", size/19) + `1]}`)},
	} {
		b.Run(fmt.Sprintf("%s/%dKiB", c.name, len(c.body)>>10), func(b *testing.B) {
			p := newTestParser(b)
			var r Request
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(c.kind, c.body, Options{}, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One pass that finds quotes and one that hashes.
func BenchmarkFloor(b *testing.B) {
	for _, kib := range benchSizes {
		b.Run(fmt.Sprintf("%dKiB", kib), func(b *testing.B) {
			body := benchBody(kib << 10)
			quotes, sum := 0, uint64(0)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				for rest := body; ; quotes++ {
					n := bytes.IndexByte(rest, '"')
					if n < 0 {
						break
					}
					rest = rest[n+1:]
				}
				sum += xxh3.Hash(body)
			}
			if quotes == 0 || sum == 0 {
				b.Fatal("no quotes")
			}
		})
	}
}

// encoding/json, and one hash of all texts.
func BenchmarkNaive(b *testing.B) {
	for _, kib := range benchSizes {
		b.Run(fmt.Sprintf("encoding-json/%dKiB", kib), func(b *testing.B) {
			body := benchBody(kib << 10)
			var h xxh3.Hasher
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var v map[string]any
				if err := json.Unmarshal(body, &v); err != nil {
					b.Fatal(err)
				}
				h.Reset()
				for _, m := range v["messages"].([]any) {
					h.WriteString(m.(map[string]any)["role"].(string))
					h.WriteString(m.(map[string]any)["content"].(string))
				}
				if h.Sum64() == 0 {
					b.Fatal("zero")
				}
			}
		})
	}
}
