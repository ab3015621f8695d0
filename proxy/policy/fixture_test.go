package policy

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/rules"
)

const t0 = prefixtree.Time(1_700_000_000_000)

const testBlock = 512

func newTree(t testing.TB) *prefixtree.Tree {
	t.Helper()
	tree, err := prefixtree.New(prefixtree.Config{Budget: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func fleetOf(n int) []Backend {
	b := make([]Backend, n)
	for i := range b {
		b[i] = Backend{ID: prefixtree.Backend(i), Generation: 1, Name: fmt.Sprintf("engine-%d", i)}
	}
	return b
}

func newRouter(t testing.TB, cfg Config, backends []Backend, list ...rules.Rule) (*Router, *prefixtree.Tree) {
	t.Helper()
	tree := newTree(t)
	cfg.BlockBytes = testBlock
	r, err := NewRouter(cfg, tree)
	if err != nil {
		t.Fatal(err)
	}
	setView(t, r, backends, list...)
	for _, b := range backends {
		tree.SetGeneration(b.ID, b.Generation, t0-1)
	}
	return r, tree
}

func setView(t testing.TB, r *Router, backends []Backend, list ...rules.Rule) {
	t.Helper()
	v, err := NewView(backends, list)
	if err != nil {
		t.Fatal(err)
	}
	r.SetView(v)
}

// prompt returns the chain of a prompt; equal families share their first common blocks.
func prompt(family, own uint64, common, blocks int) []prefixtree.Hash {
	h := make([]prefixtree.Hash, blocks)
	for i := range h {
		k := family
		if i >= common {
			k = own<<20 | 1<<63
		}
		h[i] = prefixtree.Hash(mix(k<<12 + uint64(i) + 1))
	}
	return h
}

// rated begins the books of a router anew, with engines that compute so many tokens/s.
func rated(r *Router, rate float64) {
	r.books = books.New(rate)
	r.SetView(r.View())
}

func ask(hashes []prefixtree.Hash) *Request {
	return &Request{Hashes: hashes, PromptBytes: len(hashes) * testBlock}
}

// by makes a request follow a rule that says only the strategy.
func by(r *Router, strategy string, q *Request) *Request {
	q.Route = &Route{strategy: r.tuning.Load().strategies[strategy]}
	return q
}

func pick(t testing.TB, r *Router, q *Request, now prefixtree.Time) *Attempt {
	t.Helper()
	a := new(Attempt)
	if err := r.Pick(q, now, a); err != nil {
		t.Fatal(err)
	}
	return a
}

func serve(t testing.TB, r *Router, q *Request, now prefixtree.Time) *Decision {
	t.Helper()
	a := pick(t, r, q, now)
	a.Dispatched(now)
	a.FirstToken(now)
	a.End(unknown(), now)
	return a.Decision()
}

func unknown() Outcome { return Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1} }

var requests atomic.Uint64

func failed(f books.Failure) Outcome {
	o := unknown()
	o.Failed, o.Request = f, requests.Add(1)
	return o
}

// String shows all that a decision says, for comparisons.
func (d *Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s by %s/%s: %d of %d prompt tokens expected cached", d.Name, d.Strategy, d.Rung, d.PredictedTokens, d.PromptTokens)
	if d.Replicas > 0 {
		fmt.Fprintf(&b, ", hot prefix on %d backends", d.Replicas)
	}
	if d.Trial {
		b.WriteString(", trial after a failure")
	}
	if d.LastResort {
		b.WriteString(", all backends are failing")
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		fmt.Fprintf(&b, "\n  %-24s match %4d blocks %7.0f tokens  queued %7.0f  active %3d  rate %6.0f  age %s  cost %.3f",
			c.Name, c.MatchedBlocks, c.HeldTokens, c.QueuedTokens, c.Active, c.Rate, c.Age.Round(time.Millisecond), c.Cost)
	}
	return b.String()
}
