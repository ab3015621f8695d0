package fleetsim

import (
	"math"
	"time"

	"grapevine/chaos/engine"
)

const never = time.Duration(math.MaxInt64)

// engines holds the backends in a binary heap by next event, with positions, so that one change
// costs O(log n).
type engines struct {
	models []*engine.Model
	due    []time.Duration
	heap   []int
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
		e.heap = append(e.heap, id)
		e.at = append(e.at, id)
	}
	return e, nil
}

func (e *engines) earliest() (id int, at time.Duration) {
	id = e.heap[0]
	return id, e.due[id]
}

func (e *engines) update(id int) {
	due, ok := e.models[id].Next()
	if !ok {
		due = never
	}
	e.due[id] = due
	i := e.at[id]
	for i > 0 && e.less(i, (i-1)/2) {
		e.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(e.heap); c++ {
			if e.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		e.swap(i, least)
		i = least
	}
}

func (e *engines) less(i, j int) bool {
	a, b := e.heap[i], e.heap[j]
	return e.due[a] < e.due[b] || e.due[a] == e.due[b] && a < b
}

func (e *engines) swap(i, j int) {
	e.heap[i], e.heap[j] = e.heap[j], e.heap[i]
	e.at[e.heap[i]], e.at[e.heap[j]] = i, j
}
