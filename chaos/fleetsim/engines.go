package fleetsim

import (
	"container/heap"
	"math"
	"time"

	"grapevine/chaos/engine"
)

const never = time.Duration(math.MaxInt64)

// engines is a heap of the backends by next event, with positions.
type engines struct {
	models []*engine.Model
	due    []time.Duration
	order  []int
	at     []int
}

func newEngines(n int, cfg engine.Config) (*engines, error) {
	e := &engines{}
	for id := range n {
		m, err := engine.NewModel(cfg)
		if err != nil {
			return nil, err
		}
		e.models = append(e.models, m)
		e.due = append(e.due, never)
		e.order = append(e.order, id)
		e.at = append(e.at, id)
	}
	return e, nil
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
