package doctor

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// application of a test: its requests, and what is wrong with them.
type planted struct {
	name    string
	request func(i int) map[string]any
	verdict Verdict
	field   string
	kind    Kind
	offset  int // of the field's text
}

type message = map[string]any

func chatOf(messages ...message) map[string]any {
	return map[string]any{"model": "m", "messages": messages}
}

func says(role, text string) message { return message{"role": role, "content": text} }

// prose returns text that only this seed has.
func prose(seed, bytes int) string {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	var b strings.Builder
	for b.Len() < bytes {
		for range 2 + r.IntN(7) {
			b.WriteByte(byte('a' + r.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()[:bytes]
}

func toolsOf(n int) (tools []any) {
	for i := range n {
		tools = append(tools, message{"type": "function", "function": message{
			"name": fmt.Sprintf("tool_%d", i), "description": prose(500+i, 120+37*i),
			"parameters": message{"type": "object", "properties": message{"path": message{"type": "string", "description": prose(700+i, 60)}}},
		}})
	}
	return tools
}

// plants are the cases that the doctor has to tell apart. The router's tests play them over HTTP.
func plants() []planted {
	rules, question := prose(1, 6000), func(i int) message { return says("user", prose(1000+i, 300)) }
	return []planted{
		{"a time before a long system prompt", func(i int) map[string]any {
			return chatOf(says("system", fmt.Sprintf("You are Ada. It is 2026-11-23 10:%02d:%02d. %s", i/60, i%60, rules)), question(i))
		}, Mend, "system", Insertion, 16},
		{"a time in the middle of a system prompt", func(i int) map[string]any {
			return chatOf(says("system", fmt.Sprintf("%s It is 10:%02d:%02d. %s", rules[:2500], i/60, i%60, rules[2500:])), question(i))
		}, Mend, "system", Insertion, 2507},
		{"shuffled tools", func(i int) map[string]any {
			tools := toolsOf(12)
			rand.New(rand.NewPCG(uint64(i), 9)).Shuffle(len(tools), func(a, b int) { tools[a], tools[b] = tools[b], tools[a] })
			body := chatOf(says("system", rules), question(i))
			body["tools"] = tools
			return body
		}, Mend, "tools", Order, 0},
		{"an id in the first line of the user's message", func(i int) map[string]any {
			return chatOf(says("system", "Be brief."), says("user", fmt.Sprintf("Ticket %016x\n%s\n%s", uint64(i)*0x9e3779b97f4a7c15, rules, prose(3000+i, 200))))
		}, Mend, "first user message", Insertion, 7},
		{"an id in the first line of a plain prompt", func(i int) map[string]any {
			return map[string]any{"model": "m", "prompt": fmt.Sprintf("Ticket %016x\n%s\n%s", uint64(i)*0x9e3779b97f4a7c15, rules, prose(3000+i, 200))}
		}, Mend, "prompt", Insertion, 7},
		{"a salt of each request", func(i int) map[string]any {
			body := chatOf(says("system", rules), question(i))
			body["cache_salt"] = fmt.Sprint("salt", i)
			return body
		}, Mend, "cache_salt", Insertion, 0},
		{"unique documents", func(i int) map[string]any {
			return chatOf(says("system", "Summarise."), says("user", prose(5000+i, 8000)))
		}, Skip, "", "", 0},
		{"unique documents with a phrase behind them", func(i int) map[string]any {
			return chatOf(says("user", prose(5000+i, 8000)+" Summarise this in three sentences, in plain words, and say what is missing from it."))
		}, Skip, "", "", 0},
		{"a conversation", func(i int) map[string]any {
			session, turn := i/6, i%6
			messages := []message{says("system", rules)}
			for k := range turn + 1 {
				messages = append(messages, says("user", prose(7000+100*session+k, 700)), says("assistant", prose(90000+100*session+k, 900)))
			}
			return chatOf(messages[:len(messages)-1]...)
		}, Healthy, "", "", 0},
		{"a document for several questions", func(i int) map[string]any {
			return chatOf(says("system", "Answer."), says("user", prose(8000+i/5, 9000)+prose(9000+i, 100)))
		}, Healthy, "", "", 0},
	}
}

// check compares the report of the case's requests with what is wrong with them.
func (p *planted) check(t *testing.T, r *Report) {
	t.Helper()
	if len(r.Applications) != 1 {
		t.Fatalf("%d applications, want one: %+v", len(r.Applications), r)
	}
	d := r.Applications[0]
	if d.Verdict != p.verdict {
		t.Fatalf("verdict %q (%s), want %q: %+v", d.Verdict, d.Why, p.verdict, d)
	}
	if p.verdict != Mend {
		if len(d.Findings) > 0 {
			t.Errorf("findings %+v, want none", d.Findings)
		}
		return
	}
	if len(d.Findings) != 1 {
		t.Fatalf("%d findings, want one: %+v", len(d.Findings), d.Findings)
	}
	f := d.Findings[0]
	const block = 512
	if f.Field != p.field || f.Kind != p.kind || f.Offset > p.offset+1 || f.Offset < p.offset-block {
		t.Errorf("%s at byte %d of %s, want %s at %d less a block", f.Kind, f.Offset, f.Field, p.kind, p.offset)
	}
	if f.Share < 0.8 || f.AgainBytes < 3000 || f.SavedTokens <= 0 || f.SavedPrefillS <= 0 || f.Remedy == "" {
		t.Errorf("the finding is too weak: %+v", f)
	}
	if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), strings.Fields(prose(1, 6000))[3]) {
		t.Errorf("the report holds text of the prompt, or cannot be written: %v", err)
	}
}

func TestPlantedCasesInFiles(t *testing.T) {
	t.Parallel()
	for _, p := range plants() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			var lines strings.Builder
			for i := range 90 {
				text, err := json.Marshal(p.request(i))
				if err != nil {
					t.Fatal(err)
				}
				lines.Write(append(text, '\n'))
			}
			r, err := File(strings.NewReader(lines.String()), 10_000)
			if err != nil {
				t.Fatal(err)
			}
			if r.Per != "file" || r.Applications[0].Requests != 90 || r.Applications[0].Model != "m" {
				t.Errorf("per %s, %+v", r.Per, r.Applications[0])
			}
			p.check(t, r)
		})
	}
}
