package proxy

import (
	"encoding/json"
	"strings"
	"testing"
)

// Pieces of any size give the same text, in which the model stands where the APIs have it and nowhere else is changed.
func TestRename(t *testing.T) {
	for name, tc := range map[string]struct {
		lines      bool
		body, want string
	}{
		"chat": {false, `{"id":"x","model":"qwen","choices":[{"message":{"content":"\"model\":\"qwen\"","model":"qwen"}}],"usage":{}}`,
			`{"id":"x","model":"gpt-4o","choices":[{"message":{"content":"\"model\":\"qwen\"","model":"qwen"}}],"usage":{}}`},
		"spaces":          {false, "{ \"model\" : \n \"qwen\" }", "{ \"model\" : \n \"gpt-4o\" }"},
		"another model":   {false, `{"model":"qwen2","a":"qwen"}`, `{"model":"qwen2","a":"qwen"}`},
		"a shorter one":   {false, `{"model":"qwe"}`, `{"model":"qwe"}`},
		"no text":         {false, `{"model":["qwen"],"b":{"model":"qwen"}}`, `{"model":["qwen"],"b":{"model":"qwen"}}`},
		"a value":         {false, `{"a":"model","qwen":"model","b":["model","qwen"]}`, `{"a":"model","qwen":"model","b":["model","qwen"]}`},
		"in metadata":     {false, `{"metadata":{"model":"qwen"},"model":"qwen"}`, `{"metadata":{"model":"qwen"},"model":"gpt-4o"}`},
		"escapes":         {false, `{"a\"":"\\","model":"qwen"}`, `{"a\"":"\\","model":"gpt-4o"}`},
		"a list":          {false, `[{"model":"qwen"}]`, `[{"model":"qwen"}]`},
		"a long value":    {false, `{"model":"` + strings.Repeat("q", 3*maxRename) + `","x":{},"model":"qwen"}`, `{"model":"` + strings.Repeat("q", 3*maxRename) + `","x":{},"model":"gpt-4o"}`},
		"cut":             {false, `{"model":"qw`, `{"model":"qw`},
		"no JSON":         {false, `model "model":"qwen"`, `model "model":"qwen"`},
		"a long response": {false, `{"responses":{"model":"qwen"}}`, `{"responses":{"model":"qwen"}}`},
		"stream": {true, "data: {\"model\":\"qwen\",\"choices\":[]}\n\ndata: {\"model\":\"qwen\"}\r\n\r\n: {\"model\":\"qwen\"}\ndata:{\"model\":\"qwen\"}\n\ndata: [DONE]\n\n",
			"data: {\"model\":\"gpt-4o\",\"choices\":[]}\n\ndata: {\"model\":\"gpt-4o\"}\r\n\r\n: {\"model\":\"qwen\"}\ndata:{\"model\":\"gpt-4o\"}\n\ndata: [DONE]\n\n"},
		"messages": {true, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"qwen\",\"content\":[]}}\n\n",
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"gpt-4o\",\"content\":[]}}\n\n"},
		"responses": {true, "event: response.created\ndata: {\"response\":{\"metadata\":{\"model\":\"qwen\"},\"model\":\"qwen\"}}\n\n",
			"event: response.created\ndata: {\"response\":{\"metadata\":{\"model\":\"qwen\"},\"model\":\"gpt-4o\"}}\n\n"},
		"a cut event": {true, "data: {\"model\":\"qw\n\ndata: {\"model\":\"qwen\"}\n\n", "data: {\"model\":\"qw\n\ndata: {\"model\":\"gpt-4o\"}\n\n"},
	} {
		var r renamer
		for size := 1; size <= len(tc.body); size += 1 + size/8 {
			r.reset([]byte("qwen"), []byte("gpt-4o"), tc.lines)
			var got strings.Builder
			for rest := tc.body; rest != ""; rest = rest[min(size, len(rest)):] {
				got.Write(r.feed([]byte(rest[:min(size, len(rest))])))
			}
			if name == "cut" {
				got.Write(r.text)
			}
			if got.String() != tc.want {
				t.Fatalf("%s in pieces of %d: %s, want %s", name, size, got.String(), tc.want)
			}
		}
		r.reset([]byte("qwen"), []byte("gpt-4o"), tc.lines)
		if got := string(r.whole([]byte(tc.body))); got != tc.want {
			t.Errorf("%s at once: %s, want %s", name, got, tc.want)
		}
	}
}

func FuzzRename(f *testing.F) {
	f.Add(`{"model":"qwen","response":{"model":"qwen"}}`, 3)
	f.Fuzz(func(t *testing.T, body string, size int) {
		size = min(max(size, 1), 64)
		var r renamer
		r.reset([]byte("qwen"), []byte("gpt-4o"), false)
		var got strings.Builder
		for rest := body; rest != ""; rest = rest[min(size, len(rest)):] {
			got.Write(r.feed([]byte(rest[:min(size, len(rest))])))
		}
		r.out = r.out[:0]
		r.giveUp()
		got.Write(r.out)
		if json.Valid([]byte(body)) && !json.Valid([]byte(got.String())) {
			t.Errorf("%q becomes %q", body, got.String())
		}
		r.reset([]byte("qwen"), []byte("qwen"), false)
		if same := string(r.whole([]byte(body))); same != body {
			t.Errorf("%q becomes %q", body, same)
		}
	})
}
