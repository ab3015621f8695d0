package policy

import (
	"errors"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func TestStoredGoesToItsHolder(t *testing.T) {
	backends := fleetOf(5)
	backends[1].State, backends[2].State = Draining, Down
	backends[4].Models = []string{"other"}
	for _, strategy := range Strategies() {
		r, _ := newRouter(t, Config{Strategy: strategy, Seed: 3}, backends)
		for i := range backends {
			b := &backends[i]
			for _, model := range []string{"", "m"} {
				q := &Request{Model: []byte(model), PromptBytes: 700, Continued: true, Stored: true, Holder: prefixtree.BackendKey(b.Name)}
				// The third attempts come while the backend is ejected.
				for range 4 {
					d := serve(t, r, q, t0)
					if d.Backend != b.ID || d.Rung != Stored || d.LastResort || len(d.Candidates) != 1 || d.UncachedTokens < 100 {
						t.Fatalf("%s, %s: %+v", strategy, b.Name, d)
					}
					a := pick(t, r, q, t0)
					a.End(Outcome{Failed: books.Connect}, t0)
				}
			}
			if tokens, active := r.Load(b.ID); tokens != 0 || active != 0 {
				t.Errorf("%s: %d tokens and %d requests are left", b.Name, tokens, active)
			}
		}
		gone := &Request{Stored: true, Holder: prefixtree.BackendKey("engine-5")}
		if err := r.Pick(gone, t0, new(Attempt)); !errors.Is(err, ErrHolderGone) {
			t.Errorf("%s: %v", strategy, err)
		}
	}
}

func TestStoredWithoutActiveBackends(t *testing.T) {
	backends := fleetOf(1)
	backends[0].State = Draining
	r, _ := newRouter(t, Config{}, backends)
	q := &Request{Stored: true, Holder: prefixtree.BackendKey("engine-0")}
	if d := serve(t, r, q, t0); d.Name != "engine-0" {
		t.Errorf("%+v", d)
	}
	if err := r.Pick(&Request{}, t0, new(Attempt)); !errors.Is(err, ErrNoBackend) {
		t.Error(err)
	}
}

// The router sees the last turn of a continued conversation, the engine counts all of it.
func TestContinuedTeachesNoBytesPerToken(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(1))
	before := r.table.Load().all.texts.bytesPerToken()
	for _, q := range []*Request{{PromptBytes: 400, Continued: true}, {PromptBytes: 400, Continued: true, Stored: true, Holder: prefixtree.BackendKey("engine-0")}} {
		for i := range 50 {
			now := t0 + prefixtree.Time(i*1000)
			a := pick(t, r, q, now)
			a.Dispatched(now)
			a.FirstToken(now + 10)
			a.End(Outcome{PromptTokens: 300, CachedTokens: 250, OutputTokens: 5}, now+20)
		}
	}
	if after := r.table.Load().all.texts.bytesPerToken(); after != before {
		t.Errorf("%v bytes per token, was %v", after, before)
	}
}
