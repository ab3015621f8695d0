package prompt

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

func splitOf(t testing.TB, p *Parser, k Kind, body string, o Options) Request {
	t.Helper()
	o.Split = true
	var r Request
	if err := p.Parse(k, []byte(body), o, &r); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func TestSplitEdits(t *testing.T) {
	p := newTestParser(t)
	for _, c := range [][2]string{
		{`{"messages":[]}`, `{"max_tokens":1,"messages":[]}`},
		{`{ "messages":[],"stream":true}`, `{"max_tokens":1, "messages":[],"stream":false}`},
		{`{"stream":true,"stream_options":{"x":1},"messages":[],"max_tokens": 7}`, `{"stream":false,"stream_options":null,"messages":[],"max_tokens": 1}`},
		{`{"messages":[],"max_completion_tokens":9,"max_tokens":9,"min_tokens":5}`, `{"messages":[],"max_completion_tokens":1,"max_tokens":1,"min_tokens":0}`},
		{`{"kv_transfer_params":{},"messages":[]}`, `{"max_tokens":1,"messages":[]}`},
		{`{"messages":[],"kv_transfer_params":{},"stream":true}`, `{"max_tokens":1,"messages":[],"stream":false}`},
		{`{"messages":[],"stream":true,"bootstrap_room":5,"stream":true,"vllm_xargs":{"kv_transfer_params":1,"a":2}}`,
			`{"max_tokens":1,"messages":[],"stream":false,"stream":false,"vllm_xargs":{"a":2}}`},
	} {
		r := splitOf(t, p, Chat, c[0], Options{})
		if !r.Splits {
			t.Errorf("%s does not split", c[0])
		}
		if got := string(apply(nil, []byte(c[0]), r.Prefill)); got != c[1] {
			t.Errorf("%s\ngot  %s\nwant %s", c[0], got, c[1])
		}
		if r.Inside != 1 {
			t.Errorf("%s: the first member is said to begin at %d", c[0], r.Inside)
		}
	}
}

func TestSplits(t *testing.T) {
	p := newTestParser(t)
	for body, want := range map[string]bool{
		`{"prompt":"a"}`:                        true,
		`{"prompt":[1,2]}`:                      true,
		`{"prompt":[ 1 ,2]}`:                    true,
		`{"prompt":"a","n":1,"best_of":null}`:   true,
		`{"prompt":"a","echo":false}`:           true,
		`{"prompt":"a","prompt_logprobs":null}`: true,
		`{"prompt":["a"]}`:                      false,
		`{"prompt":[[1]]}`:                      false,
		`{"prompt":[]}`:                         false,
		`{"prompt":"a","n":2}`:                  false,
		`{"prompt":"a","n":1.0}`:                false,
		`{"prompt":"a","best_of":3}`:            false,
		`{"prompt":"a","echo":true}`:            false,
		`{"prompt":"a","use_beam_search":true}`: false,
		`{"prompt":"a","prompt_logprobs":0}`:    false,
		`{"prompt_embeds":"x"}`:                 false,
		`{}`:                                    false,
	} {
		if r := splitOf(t, p, Completion, body, Options{}); r.Splits != want {
			t.Errorf("%s: splits %t", body, r.Splits)
		}
	}
	for _, k := range []Kind{Responses, Messages, Embeddings, Generate, Tokenize} {
		if r := splitOf(t, p, k, `{"stream":true,"model":"m"}`, Options{}); r.Splits {
			t.Errorf("%v splits", k)
		}
	}
}

// The prompt stays, also with a tenant's salt; only how much to answer changes.
func FuzzSplit(f *testing.F) {
	for _, s := range usageBodies {
		f.Add(s, "")
		f.Add(s, "tenant")
	}
	f.Add(`{"cache_salt":"x","min_tokens":3,"messages":[{"role":"user","content":"hi"}],"kv_transfer_params":{}}`, "t")
	p := newTestParser(f)
	f.Fuzz(func(t *testing.T, body, tenant string) {
		var r Request
		if p.Parse(Chat, []byte(body), Options{Split: true, Tenant: []byte(tenant)}, &r) != nil || !r.Splits {
			return
		}
		hashes, bytes := slices.Clone(r.Hashes), r.PromptBytes
		sent := apply(nil, []byte(body), r.Edits)
		prefill := apply(nil, []byte(body), r.Prefill)
		want, got := membersOf(sent), membersOf(prefill)
		if want == nil || got == nil {
			t.Fatalf("not JSON any more: %s", prefill)
		}
		for name, value := range map[string]string{"stream": "false", "stream_options": "null", "min_tokens": "0", "max_completion_tokens": "1"} {
			if _, given := membersOf([]byte(body))[name]; given && string(got[name]) != value {
				t.Errorf("%s is %s in %s", name, got[name], prefill)
			}
		}
		if string(got["max_tokens"]) != "1" && string(got["max_completion_tokens"]) != "1" {
			t.Errorf("no bound of the reply in %s", prefill)
		}
		for _, m := range []map[string]json.RawMessage{want, got} {
			for _, name := range []string{"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"} {
				delete(m, name)
			}
		}
		if !maps.EqualFunc(want, got, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("other members differ:\n%s\n%s", sent, prefill)
		}
		if p.Parse(Chat, prefill, Options{}, &r) != nil || !slices.Equal(hashes, r.Hashes) || bytes != r.PromptBytes {
			t.Errorf("another prompt: %s", prefill)
		}
	})
}
