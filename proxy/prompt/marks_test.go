package prompt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
)

// The end of one turn's prompt must be a mark of the next turn's prompt, whatever the length of the texts.
func TestMarksOfTheNextTurn(t *testing.T) {
	hasher, err := prefixtree.NewHasher([]byte("secret"), 64)
	if err != nil {
		t.Fatal(err)
	}
	p := NewParser(hasher)
	long := func(n int) string { return strings.Repeat("long and \\\"escaped\\\" text ", n) }
	for _, size := range []int{1, 2, 3, 5, 40} {
		for kind, turns := range map[Kind][2]string{
			Chat: {
				fmt.Sprintf(`{"messages":[{"role":"system","content":"%s"},{"role":"user","content":"q"}],"model":"m"}`, long(size)),
				fmt.Sprintf(`{"model":"m","messages":[{"content":"%s","role":"system"},{"role":"user","content":[{"type":"text","text":"q"}]},`+
					`{"role":"assistant","content":"%s"},{"role":"user","content":"r"}]}`, long(size), long(size)),
			},
			Messages: {
				fmt.Sprintf(`{"system":"%s","messages":[{"role":"user","content":"q"}]}`, long(size)),
				fmt.Sprintf(`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],"system":"%s"}`, long(size)),
			},
			Responses: {
				fmt.Sprintf(`{"instructions":"%s","input":"q"}`, long(size)),
				fmt.Sprintf(`{"instructions":"%s","input":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}]}`, long(size)),
			},
		} {
			var r Request
			if err := p.Parse(kind, []byte(turns[0]), Options{}, &r); err != nil {
				t.Fatal(err)
			}
			end, messages := r.Marks[len(r.Marks)-1], len(r.Marks)
			if end.Bytes != r.PromptBytes || messages != 2 {
				t.Fatalf("%v: %d marks up to byte %d of a prompt of %d bytes and two messages", kind, messages, end.Bytes, r.PromptBytes)
			}
			if err := p.Parse(kind, []byte(turns[1]), Options{}, &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Marks) != 4 || !slices.Contains(r.Marks, end) {
				t.Errorf("%v: the first turn's end %v is not among the next turn's marks %v", kind, end, r.Marks)
			}
		}
	}
}

func TestMarksAreBounded(t *testing.T) {
	hasher, err := prefixtree.NewHasher([]byte("secret"), 64)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"messages":[` + strings.Repeat(`{"role":"user","content":"q"},`, 999) + `{"role":"user","content":"the end"}]}`
	var r Request
	if err := NewParser(hasher).Parse(Chat, []byte(body), Options{}, &r); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Marks); n != 64 || r.Marks[n-1].Bytes != r.PromptBytes {
		t.Errorf("%d marks up to byte %d of %d: want the last 64", n, r.Marks[n-1].Bytes, r.PromptBytes)
	}
}
