package hot

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

func TestKeptPromptsAreBounded(t *testing.T) {
	w := New(Config{WarmUp: &WarmUp{}}).warmer
	see := func(anchor int, status, size int, kind prompt.Kind) {
		w.observe(&proxy.Record{
			Path: []byte("/v1/completions"), Kind: kind, Status: status, Body: [][]byte{make([]byte, size)}, RequestBytes: size,
			Decision: &policy.Decision{Hot: prefixtree.Hash(anchor), Replicas: min(anchor, 1)},
		})
	}
	for i := range 5 * keptPrompts {
		see(i+1, 200, 10, prompt.Completion)
	}
	if len(w.kept) != keptPrompts {
		t.Errorf("%d are kept, want %d", len(w.kept), keptPrompts)
	}
	if _, ok := w.kept[prefixtree.Hash(5*keptPrompts)]; !ok {
		t.Error("the latest is not among them")
	}
	clear(w.kept)
	see(0, 200, 10, prompt.Completion)
	see(1, 500, 10, prompt.Completion)
	see(2, 200, keptBytes+1, prompt.Completion)
	see(3, 200, 10, prompt.Messages)
	if len(w.kept) != 0 {
		t.Errorf("kept %v", w.kept)
	}
	see(4, http.StatusOK, 10, prompt.Chat)
	first := w.kept[4]
	see(4, http.StatusOK, 20, prompt.Chat)
	if len(first.body) != 10 || len(w.kept[4].body) != 10 {
		t.Error("replaced within a minute")
	}
}

func TestForOneToken(t *testing.T) {
	got, err := forOneToken([]byte(`{"prompt":[1,2.50],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":7,"n":3,"store":true,"metadata":{"user":"u"},"x":{"a":1e2}}`))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(got, &fields); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(len(fields), string(fields["prompt"]), string(fields["max_tokens"]), string(fields["x"])); s != `3[1,2.50]1{"a":1e2}` {
		t.Errorf("%s: %s", s, got)
	}
	if _, err := forOneToken([]byte(`[1]`)); err == nil {
		t.Error("a list is a request")
	}
}
