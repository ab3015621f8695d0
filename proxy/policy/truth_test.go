package policy

import (
	"testing"

	"grapevine.example/prefixtree"
)

// reports is what backends report to hold.
type reports map[prefixtree.Backend]Held

func (r reports) Held(b prefixtree.Backend, q *Request, blocks int) Held { return r[b] }

func (r reports) Latest(*Request) (b prefixtree.Backend, known bool) { return 0, false }

// reportsOfOne also say which backend got the prompt that all others go on from.
type reportsOfOne struct {
	reports
	latest prefixtree.Backend
}

func (r reportsOfOne) Latest(*Request) (b prefixtree.Backend, known bool) { return r.latest, true }

// Where many backends hold what all prompts share, only some are asked; the one with the conversation is, in a large pool, too.
func TestLatestHolderIsAsked(t *testing.T) {
	for _, n := range []int{3, 100, 2 * weighAll} {
		for _, latest := range []prefixtree.Backend{0, prefixtree.Backend(n - 2), prefixtree.Backend(n - 1)} {
			truth := reportsOfOne{reports{}, latest}
			shared, spared := prompt(1, 1, 4, 4), prefixtree.Backend(n-1)
			r, tree := newRouter(t, Config{Truth: truth}, fleetOf(n))
			for b := range prefixtree.Backend(n) {
				truth.reports[b] = Held{Known: true, Tokens: 100}
				if b != spared { // which the tree knows nothing of
					var touched prefixtree.TouchHistory
					tree.Record(b, shared, t0, &touched)
				}
			}
			truth.reports[latest] = Held{Known: true, Tokens: 4000}
			a := pick(t, r, ask(prompt(1, 2, 4, 40)), t0+1000)
			if d := a.Decision(); d.Backend != latest || !d.Exact || d.PredictedTokens != 4000 {
				t.Errorf("of %d: backend %d with %d tokens, exact %t; want %d with 4000", n, d.Backend, d.PredictedTokens, d.Exact, latest)
			}
			a.End(unknown(), t0+1000)
		}
	}
}

func TestReportedCachesReplacePredictedOnes(t *testing.T) {
	truth := reports{}
	r, _ := newRouter(t, Config{Truth: truth}, fleetOf(3))
	chain := prompt(1, 1, 0, 40)
	first := serve(t, r, ask(chain), t0)
	if first.Exact {
		t.Error("a prediction counts as exact")
	}
	now := t0 + 10_000
	tokens := pick(t, r, ask(chain), now)
	predicted := tokens.Decision().PredictedTokens
	tokens.End(unknown(), now)

	truth[first.Backend] = Held{Known: true, Tokens: predicted / 2}
	a := pick(t, r, ask(chain), now)
	if d := a.Decision(); d.Backend != first.Backend || !d.Exact || d.PredictedTokens != predicted/2 || !d.Candidates[0].Exact {
		t.Errorf("%+v: want the holder with the tokens that it reports", d)
	}
	a.End(unknown(), now)

	truth[first.Backend] = Held{Known: true, Tokens: predicted, Loading: float64(predicted) / 4}
	a = pick(t, r, ask(chain), now)
	if d := a.Decision(); d.PredictedTokens != predicted || d.UncachedTokens < predicted/4 || d.UncachedTokens > d.PromptTokens-predicted+predicted/4+1 {
		t.Errorf("%+v: want loading to cost a quarter of %d tokens", d, predicted)
	}
	a.End(unknown(), now)

	// The number of a prompt's tokens is estimated; what the engine reports is counted.
	truth[first.Backend] = Held{Known: true, Tokens: first.PromptTokens + 50}
	a = pick(t, r, ask(chain), now)
	if d := a.Decision(); d.PredictedTokens != first.PromptTokens+50 || d.UncachedTokens != 1 {
		t.Errorf("%+v: want all that the backend reports of a prompt that is longer than estimated", d)
	}
	a.End(unknown(), now)

	truth[first.Backend] = Held{Known: true}
	elsewhere := false
	for range 20 { // what is gone attracts nothing
		a = pick(t, r, ask(chain), now)
		elsewhere = elsewhere || a.Decision().Backend != first.Backend
		if a.Decision().PredictedTokens != 0 {
			t.Errorf("%d tokens predicted of an empty cache", a.Decision().PredictedTokens)
		}
		a.End(unknown(), now)
	}
	if !elsewhere {
		t.Error("all requests went to a backend that reports to hold nothing")
	}
}

func TestReportedCachesThatTheTreeHasNotHeardOf(t *testing.T) {
	truth := reports{}
	r, _ := newRouter(t, Config{Truth: truth}, fleetOf(3))
	truth[1] = Held{Known: true, Tokens: 700}
	a := pick(t, r, ask(prompt(1, 1, 0, 40)), t0)
	defer a.End(unknown(), t0)
	if d := a.Decision(); d.Backend != 1 || !d.Exact || d.PredictedTokens != 700 {
		t.Errorf("%+v: want backend 1, which reports to hold 700 tokens", d)
	}
}
