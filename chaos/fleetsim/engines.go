package fleetsim

import (
	"container/heap"
	"math"
	"time"

	"grapevine/chaos/engine"
)

const never = time.Duration(math.MaxInt64)

// engines holds the backends in a heap by next event, with positions, so that one change costs
// O(log n).
type engines struct {
	models []*engine.Model
	due    []time.Duration
	order  []int // the heap, of ids
	at     []int // each id's place in the heap
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

func (e *engines) earliest() (id int, at time.Duration) { return e.order[0], e.due[e.order[0]] }

func (e *engines) update(id int) {
	due, ok := e.models[id].Next()
	if !ok {
		due = never
	}
	e.due[id] = due
	heap.Fix(e, e.at[id])
}

// Len, Less and Swap are heap.Interface's; no engine joins or leaves, so Push and Pop are empty.
func (e *engines) Len() int { return len(e.order) }

func (e *engines) Less(i, j int) bool {
	a, b := e.order[i], e.order[j]
	return e.due[a] < e.due[b] || e.due[a] == e.due[b] && a < b
}

func (e *engines) Swap(i, j int) {
	e.order[i], e.order[j] = e.order[j], e.order[i]
	e.at[e.order[i]], e.at[e.order[j]] = i, j
}

func (e *engines) Push(any) {}
func (e *engines) Pop() any { return nil }
