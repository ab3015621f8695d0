package prompt

import (
	"testing"
)

func TestKindOf(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions":      Chat,
		"/v1/completions":           Completion,
		"/v1/responses":             Responses,
		"/v1/embeddings":            Embeddings,
		"/v1/messages":              Messages,
		"/v1/messages/count_tokens": CountTokens,
		"/generate":                 Generate,
		"/tokenize":                 Tokenize,
		"/detokenize":               Detokenize,
		"/score":                    Score,
		"/v1/rerank":                Rerank,
		"/pooling":                  Pooling,
		"/v1/models":                Other,
		"":                          Other,
	} {
		if got := KindOf([]byte(path)); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func TestRequest(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    Kind
		body    string
		model   string
		lora    string
		stream  bool
		max     int
		session string
		usage   bool
	}{
		{"nothing", Chat, `{}`, "", "", false, 0, "", false},
		{"chat", Chat, `{"model":"org\/m","stream":true,"max_tokens":7,"user":"u","stream_options":{"include_usage":true}}`, "org/m", "", true, 7, "u", true},
		{"newer name first", Chat, `{"max_tokens":7,"max_completion_tokens":9}`, "", "", false, 9, "", false},
		{"responses", Responses, `{"max_output_tokens":11}`, "", "", false, 11, "", false},
		{"sglang", Generate, `{"lora_path":"l","sampling_params":{"a":[],"max_new_tokens":13},"session_params":{"x":1,"session_id":"s"}}`, "", "l", false, 13, "s", false},
		{"sglang id", Generate, `{"session_params":{"id":5}}`, "", "", false, 0, "5", false},
		{"anthropic", Messages, `{"metadata":{"user_id":"a\n\t\"\\\u001b\/b"},"max_tokens":3}`, "", "", false, 3, "a\n\t\"\\\x1b/b", false},
		{"session first", Chat, `{"user":"u","session_id":"s","prompt_cache_key":"k"}`, "", "", false, 0, "s", false},
		{"cache key", Responses, `{"prompt_cache_key":"k","metadata":{"session_id":"no"}}`, "", "", false, 0, "k", false},
		{"last wins", Chat, `{"model":"a","stream":true,"max_tokens":1,"user":"x","model":"b","stream":null,"max_tokens":null,"user":null}`, "b", "", false, 0, "", false},
		{"odd types", Chat, `{"model":5,"stream":"TRUE","max_tokens":-3,"user":[1],"stream_options":7}`, "", "", true, 0, "", false},
		{"numbers", Chat, `{"stream":1,"max_tokens":1e3,"max_completion_tokens":99999999999999999999}`, "", "", true, 0, "", false},
		{"cut off", Chat, `{"model":"m","stream":true,"messages":[`, "m", "", true, 0, "", false},
		{"lora of a batch", Generate, `{"lora_path":["a"]}`, "", "", false, 0, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestParser(t)
			var r Request
			_ = p.Parse(c.kind, []byte(c.body), Options{}, &r) // one body is truncated on purpose
			got := []any{string(r.Model), string(r.LoRA), r.Stream, r.MaxTokens, string(r.Session), p.ctl.usage}
			want := []any{c.model, c.lora, c.stream, c.max, c.session, c.usage}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("got %v, want %v", got, want)
					break
				}
			}
		})
	}
}

// Single rules; meaning_test.go has the rest.
func TestEqual(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		a, b string
	}{
		{"sampling", Chat, `{"messages":[{"role":"user","content":"x"}]}`, `{"temperature":0.5,"seed":7,"n":2,"response_format":{"type":"json_object"},"messages":[{"role":"user","content":"x"}]}`},
		{"null members", Chat, `{"messages":[{"role":"assistant","content":"x"}]}`, `{"tools":null,"messages":[{"role":"assistant","content":"x","tool_calls":null,"function_call":null,"refusal":null,"audio":null,"annotations":[]}]}`},
		{"no content", Chat, `{"messages":[{"role":"user"}]}`, `{"messages":[{"role":"user","content":[{"type":"text","text":""}]}]}`},
		{"reasoning by both its names", Chat, `{"messages":[{"reasoning_content":"x","reasoning":"r"}]}`, `{"messages":[{"reasoning":"r"}]}`},
		{"reasoning by either name", Chat, `{"messages":[{"reasoning_content":"r"}]}`, `{"messages":[{"reasoning":"r"}]}`},
		{"url", Chat, `{"messages":[{"content":[{"type":"image_url","image_url":"u"}]}]}`, `{"messages":[{"content":[{"image_url":{"url":"u"},"type":"image_url"}]}]}`},
		{"no tools", Chat, `{"tools":[],"tool_choice":"auto","chat_template_kwargs":{}}`, `{}`},
		{"tool record", Chat, `{"tools":[{"function":{"parameters":{},"name":"f"},"type":"function"}]}`, `{"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":{}}}]}`},
		{"defaults", Chat, `{"add_generation_prompt":true,"continue_final_message":false,"add_special_tokens":false}`, `{}`},
		{"one prompt", Completion, `{"prompt":"x"}`, `{"prompt":["x"]}`},
		{"one list of ids", Completion, `{"prompt":[1,2]}`, `{"prompt":[[1,2]]}`},
		{"billing", Messages, `{"system":[{"type":"text","text":"x-anthropic-billing-header: a"},{"type":"text","text":"s"}]}`, `{"system":"s"}`},
		{"cache control moves", Messages, `{"messages":[{"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]}]}`, `{"messages":[{"role":"user","content":"x"}]}`},
		{"responses", Responses, `{"input":"x","instructions":"s"}`, `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}],"id":"m1"}],"instructions":"s"}`},
	} {
		t.Run(c.name, func(t *testing.T) { compare(t, c.kind, c.a, c.b, true) })
	}
}

func TestDifferent(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		a, b string
	}{
		{"model", Chat, `{"model":"a"}`, `{"model":"b"}`},
		{"salt", Chat, `{"cache_salt":"a"}`, `{"extra_key":"a"}`},
		{"lora", Generate, `{"text":"x","lora_path":"l"}`, `{"text":"x"}`},
		{"forged message", Chat, `{"messages":[{"role":"user","content":"a\u000euser\u000fb"}]}`, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`},
		{"parts apart", Chat, `{"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, `{"messages":[{"content":"ab"}]}`},
		{"an empty part behind another", Chat, `{"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":""}]}]}`, `{"messages":[{"content":"a"}]}`},
		{"an empty part does not empty the rest", Chat, `{"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":""}]}]}`, `{"messages":[{}]}`},
		{"order of messages", Chat, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, `{"messages":[{"role":"user","content":"b"},{"role":"user","content":"a"}]}`},
		{"order in a schema", Chat, `{"tools":[{"function":{"parameters":{"a":1,"b":2}}}]}`, `{"tools":[{"function":{"parameters":{"b":2,"a":1}}}]}`},
		{"integer and float", Chat, `{"tools":[{"function":{"parameters":{"a":1}}}]}`, `{"tools":[{"function":{"parameters":{"a":1.0}}}]}`},
		{"no tools after all", Chat, `{"tools":[{"function":{"name":"f"}}],"tool_choice":"none"}`, `{"tools":[{"function":{"name":"f"}}]}`},
		{"result and what follows it", Messages, `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}]}`, `{"messages":[{"content":[{"type":"tool_result","tool_use_id":"t","content":"a"},{"type":"text","text":"b"}]}]}`},
		{"ids and text", Completion, `{"prompt":[49]}`, `{"prompt":"1"}`},
		{"ids apart", Completion, `{"prompt":[[1],[2]]}`, `{"prompt":[1,2]}`},
		{"text and its number", Completion, `{"prompt":"5"}`, `{"prompt":5}`},
		{"pairs", Score, `{"text_1":["a"],"text_2":["b","c"]}`, `{"text_1":["a","b"],"text_2":["c"]}`},
		{"unfinished", Chat, `{"messages":[{"content":"x"}],"continue_final_message":true}`, `{"messages":[{"content":"x"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) { compare(t, c.kind, c.a, c.b, false) })
	}
}

func compare(t *testing.T, k Kind, a, b string, equal bool) {
	t.Helper()
	p := newTestParser(t)
	one, err := p.PromptBytes(k, []byte(a))
	if err != nil {
		t.Fatal(err)
	}
	two, err := p.PromptBytes(k, []byte(b))
	if err != nil {
		t.Fatal(err)
	}
	if (string(one) == string(two)) != equal {
		t.Errorf("%s\n%s\nas\n%q\n%q", a, b, one, two)
	}
}

func TestAllocations(t *testing.T) {
	p := newTestParser(t)
	var (
		r   Request
		dst []byte
	)
	check := func(name string, k Kind, body []byte) {
		if p.Parse(k, body, Options{}, &r) != nil {
			return // the error is allocated
		}
		run := func() {
			_ = p.Parse(k, body, Options{}, &r)
			dst = apply(dst[:0], body, r.Edits)
		}
		run()
		if n := testing.AllocsPerRun(20, run); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	check("128 KiB", Chat, benchBody(128<<10))
	for _, s := range seedBodies {
		check(s.body, s.kind, []byte(s.body))
	}
}
