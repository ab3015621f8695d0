package proxy

import (
	"testing"
)

func TestForward(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	rp := r.raw(chat(false)).want(t, 200, `"hi"`)
	if rp.Header.Get("X-Grapevine-Backend") != "b0" || rp.Header.Get("X-Grapevine-Node") != "n1" || rp.Header.Get("X-Request-Id") == "" {
		t.Errorf("headers %v", rp.Header)
	}
	rec := r.record(0)
	if rec.Status != 200 || rec.PromptTokens != 11 || rec.CachedTokens != 4 || rec.OutputTokens != 3 || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
}
