package fleetsim

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

const never = time.Duration(math.MaxInt64)

// engines is a heap of the backends by next event, with positions.
type engines struct {
	models []*engine.Model
	due    []time.Duration
	order  []int
	at     []int
	// waiting is the tokens to compute of each engine's requests that it has not admitted.
	waiting []int
	slow    []float64 // factor on every step
}

func newEngines(list []Engine) (*engines, error) {
	e := &engines{}
	for id := range list {
		m, err := engine.NewModel(list[id].Config)
		if err != nil {
			return nil, err
		}
		e.models = append(e.models, m)
		e.due = append(e.due, never)
		e.order = append(e.order, id)
		e.at = append(e.at, id)
		e.waiting, e.slow = append(e.waiting, 0), append(e.slow, 1)
	}
	return e, nil
}

func (e *engines) submit(fl *flight, at time.Duration) {
	m := e.models[fl.backend]
	fl.waiting = fl.job.PromptTokens - m.Coming(fl.job.Keys, fl.job.KeyTokens)
	e.waiting[fl.backend] += fl.waiting
	m.Submit(&fl.job, at)
	e.update(fl.backend)
}

// admitted is called again after a preemption.
func (e *engines) admitted(fl *flight) {
	e.waiting[fl.backend] -= fl.waiting
	fl.waiting = 0
}

func (e *engines) earliest() (id int, at time.Duration) {
	id = e.order[0]
	return id, e.due[id]
}

func (e *engines) update(id int) {
	due, ok := e.models[id].Next()
	if !ok {
		due = never
	}
	e.due[id] = due
	heap.Fix(e, e.at[id])
}

func (e *engines) Len() int { return len(e.order) }

func (e *engines) Less(i, j int) bool {
	a, b := e.order[i], e.order[j]
	return e.due[a] < e.due[b] || e.due[a] == e.due[b] && a < b
}

func (e *engines) Swap(i, j int) {
	e.order[i], e.order[j] = e.order[j], e.order[i]
	e.at[e.order[i]], e.at[e.order[j]] = i, j
}

func (*engines) Push(any) {}

func (*engines) Pop() any { return nil }

// change is that of an engine at a set time: it joins, or becomes slow.
type change struct {
	at     time.Duration
	engine int
	slow   float64 // 0: it joins
}

// changesOf returns them in order of time.
func changesOf(list []Engine) (out []change) {
	for i, e := range list {
		if e.Joins > 0 {
			out = append(out, change{at: e.Joins, engine: i})
		}
		if e.SlowBy > 0 {
			out = append(out, change{at: e.SlowAt, engine: i, slow: e.SlowBy})
		}
	}
	slices.SortStableFunc(out, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return out
}

// before reports whether the change precedes the next event and the next arrival, if any.
func (c *change) before(due, arrival time.Duration, more bool) bool {
	return c.at <= due && (!more || c.at <= arrival)
}

func (f *fleet) change() error {
	c := f.changes[0]
	f.changes = f.changes[1:]
	f.pass(c.at)
	if c.slow == 0 {
		return f.join(c.at, f.feed.hasher.BlockBytes(), c.engine)
	}
	f.engines.models[c.engine].Slow(c.slow, c.at)
	f.engines.slow[c.engine] = c.slow
	f.engines.update(c.engine)
	return nil
}

// join gives all nodes a view with further engines, which those after the start begin with slow
// start.
func (f *fleet) join(at time.Duration, blockBytes int, ids ...int) error {
	for _, id := range ids {
		b := policy.Backend{ID: prefixtree.Backend(id), Generation: 1, Name: fmt.Sprintf("engine-%d", id)}
		if !f.cfg.HideCapacity {
			b.KVTokens = f.engines.models[id].Config().KVTokens
		}
		if m := f.cfg.Engines[id].Model; m != "" {
			b.Models = []string{m}
		}
		for k := range f.cfg.Adapters {
			b.Models = append(b.Models, adapterName(k))
		}
		b.Adapters = slices.Sorted(slices.Values(b.Models[len(b.Models)-f.cfg.Adapters:]))
		if at > 0 {
			b.Since = clock(at)
		}
		f.backends = append(f.backends, b)
	}
	view, err := policy.NewView(f.backends, nil)
	if err != nil {
		return err
	}
	for i := range f.nodes {
		n := &f.nodes[i]
		n.router.SetView(view)
		for _, b := range f.backends[len(f.backends)-len(ids):] {
			n.tree.SetGeneration(b.ID, b.Generation, clock(at))
			if b.KVTokens > 0 {
				n.tree.SetCapacity(b.ID, b.KVTokens*workload.BytesPerToken/blockBytes)
			}
		}
	}
	return nil
}
