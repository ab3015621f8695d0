package node

import (
	"slices"
	"sync"
	"time"
)

// unplaced keeps what others told of backends that this node does not know yet: a
// node may hear of a new backend from one that routes to it before it hears of it
// by the agreement. Bounded in bytes and time. Safe for concurrent use.
type unplaced struct {
	mu    sync.Mutex
	told  []toldEarly // oldest first
	bytes int
}

type toldEarly struct {
	payload []byte
	shift   time.Duration
	at      time.Time
}

const (
	// unplacedBytes holds what eight nodes tell in five seconds at 100 kB/s each.
	unplacedBytes = 4 << 20
	// unplacedFor is longer than an agreement takes to reach a node that hears others.
	unplacedFor = 30 * time.Second
)

// keep takes a copy of a payload.
func (u *unplaced) keep(payload []byte, shift time.Duration, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.told = append(u.told, toldEarly{slices.Clone(payload), shift, at})
	u.bytes += len(payload)
	gone := 0
	for gone < len(u.told) && (u.bytes > unplacedBytes || at.Sub(u.told[gone].at) > unplacedFor) {
		u.bytes -= len(u.told[gone].payload)
		gone++
	}
	u.told = slices.Delete(u.told, 0, gone)
}

// take returns what is kept and still worth something, and keeps it no longer.
func (u *unplaced) take(at time.Time) []toldEarly {
	u.mu.Lock()
	defer u.mu.Unlock()
	told := slices.DeleteFunc(u.told, func(t toldEarly) bool { return at.Sub(t.at) > unplacedFor })
	u.told, u.bytes = nil, 0
	return told
}
