package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/node/admin"
)

const (
	// exactBound is how soon after the return of its stream a node must know a cache exactly.
	exactBound = 5 * time.Second
	// wrongShare of the exact expectations may be wrong by more than a block. Not every place of a text is known to the block.
	wrongShare = 0.02
	// promptsOfEngine bounds the prompts kept of each engine.
	promptsOfEngine = 24
)

var cachesKnown = Invariant{
	Name: "caches-are-known",
	Promise: "what a node that follows an engine's cache events calls exact is what the engine holds, and after its stream was " +
		"silent or lost batches, or the node restarted, it follows the engine again",
	Bound: "5 s after the stream's return or the node's; one KV block, for all but 2 % of the prompts",
	Seen: "each node's GET /backends and, at rest, its POST /explain of prompts that the engines computed during the run, compared " +
		"with the engines' caches",
	judge: func(e *evidence, f *finding) {
		for i := range e.marks {
			e.returned(f, i)
		}
		var wrong []forecast
		judged := 0
		block := float64(e.cfg.BlockTokens)
		for _, c := range e.forecasts {
			if e.harmed(c.engine, losesCache, c.sent, c.end) {
				continue // the engine computed the prompt again, and its answer so far with it
			}
			judged++
			if d := c.expected - float64(c.held); d > block || d < -block {
				wrong = append(wrong, c)
			}
		}
		f.checked += judged
		f.note = fmt.Sprintf("%d of %d prompts expected wrongly by more than a block", len(wrong), judged)
		if float64(len(wrong)) <= wrongShare*float64(judged) {
			return
		}
		for _, c := range wrong {
			f.violate(e.drained, c.node+", "+c.engine, "the node calls it exact that the engine holds %.0f tokens of the prompt of %s, and it holds %d of %d", c.expected, c.id, c.held, c.prompt)
		}
	},
}

// returned checks that the followers concerned know caches exactly again after a stream was silent or a node was away.
func (e *evidence) returned(f *finding, mark int) {
	m := &e.marks[mark]
	by := m.Over + exactBound
	if m.Over < 0 || by > e.drained {
		return
	}
	for _, node := range e.nodes {
		for _, engine := range e.engines {
			silent, away := (m.Kind == "mute" || m.Kind == "lose") && m.touches(engine), slices.Contains(startsNode, m.Kind) && m.touches(node)
			if !silent && !away || e.disturbed(mark, node, engine, by) {
				continue
			}
			known := e.seen[node].caches[engine].at(by)
			if known == "" || known == absent {
				continue // others follow the engine
			}
			if f.checked++; known != "exact" {
				f.violate(by, node+", "+engine, "%v after %s the node knows the cache of the engine as %s", exactBound, m.Event, known)
			}
		}
	}
}

// disturbed reports whether another event keeps the node from following the engine between the end of a mark and by.
func (e *evidence) disturbed(mark int, node, engine string, by time.Duration) bool {
	for i := range e.marks {
		m := &e.marks[i]
		if i != mark && m.Kind != "amnesia" && m.Kind != "renew" && (m.touches(node) || m.touches(engine)) && m.during(e.marks[mark].Over, by, 0) {
			return true
		}
	}
	return false
}

// at returns what was seen last until that time, the zero value if nothing was.
func (t *track[T]) at(when time.Duration) (what T) {
	for i := range t.list {
		if t.list[i].first.answered > when {
			break
		}
		what = t.list[i].what
	}
	return what
}

// forecast is what a node that calls it exact expects an engine to hold of a prompt, and what the engine holds, in tokens.
type forecast struct {
	node, engine, id string
	sent, end        time.Duration // of the request
	expected         float64
	held, prompt     int
}

// prompts is a sample of what each engine computed. Safe for concurrent use.
type prompts struct {
	mu   sync.Mutex
	rng  *rand.Rand
	of   map[string][]computed // by engine
	seen map[string]int
}

type computed struct {
	id, path  string
	sent, end time.Duration
	body      []byte
}

func newPrompts(seed uint64) *prompts {
	return &prompts{rng: rand.New(rand.NewPCG(seed, 0x9407)), of: make(map[string][]computed), seen: make(map[string]int)}
}

// add keeps every prompt of an engine with the same probability. Without a receiver it does nothing.
func (p *prompts) add(a *Attempt, request *payload) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one := computed{a.ID, request.path, a.Sent, a.End, request.body}
	p.seen[a.Backend]++
	if list := p.of[a.Backend]; len(list) < promptsOfEngine {
		p.of[a.Backend] = append(list, one)
	} else if i := p.rng.IntN(p.seen[a.Backend]); i < len(list) {
		list[i] = one
	}
}

// forecasts asks every running node about the prompts. Without prompts there are none.
func forecasts(ctx context.Context, f *fleet.Fleet, p *prompts) (out []forecast, err error) {
	if p == nil {
		return nil, nil
	}
	for _, e := range f.Engines() {
		s := e.Server()
		if s == nil {
			continue
		}
		for _, c := range p.of[e.Name()] {
			truth, err := s.Cached(c.path, c.body)
			if err != nil {
				return out, fmt.Errorf("%s: %w", e.Name(), err)
			}
			for _, n := range f.Running() {
				r, err := explain(ctx, n, &c)
				if err != nil {
					return out, err
				}
				i := slices.IndexFunc(r.Candidates, func(c admin.Candidate) bool { return c.Backend == e.Name() })
				if i >= 0 && r.Candidates[i].Exact {
					out = append(out, forecast{n.Name(), e.Name(), c.id, c.sent, c.end, r.Candidates[i].HeldTokens, truth.CachedTokens, truth.PromptTokens})
				}
			}
		}
	}
	return out, nil
}

func explain(ctx context.Context, n *fleet.Node, c *computed) (*admin.Receipt, error) {
	status, text, err := n.Call(ctx, http.MethodPost, "/explain?path="+url.QueryEscape(c.path), json.RawMessage(c.body))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", status, text)
	}
	var r admin.Receipt
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not explain %s", n.Name(), c.id), err)
	}
	return &r, nil
}
