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
	// unplacedEach is what a payload costs besides its bytes, so that many small ones
	// are bounded, too.
	unplacedEach = 128
	// unplacedFor is longer than an agreement takes to reach a node that hears others.
	unplacedFor = 30 * time.Second
)

// keep takes a copy of a payload.
func (u *unplaced) keep(payload []byte, shift time.Duration, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.told = append(u.told, toldEarly{slices.Clone(payload), shift, at})
	u.bytes += unplacedEach + len(payload)
	for len(u.told) > 0 && (u.bytes > unplacedBytes || at.Sub(u.told[0].at) > unplacedFor) {
		u.bytes -= unplacedEach + len(u.told[0].payload)
		u.told[0] = toldEarly{} // the rest stays in place: append moves it now and then
		u.told = u.told[1:]
	}
}

// take returns what is kept and still worth something, and keeps it no longer.
func (u *unplaced) take(at time.Time) []toldEarly {
	u.mu.Lock()
	defer u.mu.Unlock()
	told := slices.DeleteFunc(u.told, func(t toldEarly) bool { return at.Sub(t.at) > unplacedFor })
	u.told, u.bytes = nil, 0
	return told
}
