package policy

import (
	"sync"

	"github.com/zeebo/xxh3"
)

// adapterWindow is over how many requests the mean time of those that use an adapter is taken.
const adapterWindow = 512

// adapterTime is the mean time of requests that use an adapter. Safe for concurrent use.
type adapterTime struct {
	mu               sync.Mutex
	seconds, counted float64
}

func (t *adapterTime) add(seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seconds += seconds
	if t.counted++; t.counted > adapterWindow {
		t.seconds, t.counted = t.seconds/2, t.counted/2
	}
}

func (t *adapterTime) mean() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seconds / max(t.counted, 1)
}

// adapter returns the name of the request's LoRA adapter, 0 without one.
func (s *Scene) adapter() uint64 {
	switch {
	case len(s.Request.LoRA) > 0:
		return xxh3.Hash(s.Request.LoRA)
	case s.pool.adapter:
		return xxh3.Hash(s.Request.Model)
	}
	return 0
}

// equip adds the price of an adapter's slot to the start of candidates where it has none.
func (s *Scene) equip() {
	name := s.adapter()
	if name == 0 {
		return
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		price := c.engine.AdapterSlotsTaken(name, s.Now) * s.slotTime
		c.start += price
		c.place += price
	}
}
