package gossip

import (
	"sync"
	"time"
)

// budget is a token bucket over the bytes this node sends. What cannot wait is debited even below zero; what can, asks first.
// Safe for concurrent use.
type budget struct {
	mu     sync.Mutex
	rate   float64 // bytes per second
	tokens float64 // at most one second's worth
	at     time.Time
}

func newBudget(rate int64, now time.Time) *budget {
	return &budget{rate: float64(rate), tokens: float64(rate), at: now}
}

func (b *budget) refillLocked(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.rate, b.tokens+b.rate*d.Seconds())
	}
	b.at = now
}

// spend debits n bytes that were sent. The debt is bounded by one second's worth, so that a burst of what cannot wait
// does not silence the rest for longer.
func (b *budget) spend(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	b.tokens = max(-b.rate, b.tokens-float64(n))
}

// left is how many bytes may be sent now; not below zero.
func (b *budget) left(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	return int(max(0, b.tokens))
}

// bulkReserve is the share of a full bucket that repairs and snapshots leave to news.
const bulkReserve = 0.25

// bulk reports whether n bytes of repairs or snapshots may be sent now, and else how long to wait before asking again.
func (b *budget) bulk(now time.Time, n int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	// What is larger than half the bucket goes when half is there, and is paid back later.
	need := min(float64(n)+bulkReserve*b.rate, b.rate/2)
	if b.tokens >= need {
		return 0
	}
	return min(time.Second, time.Duration((need-b.tokens)/b.rate*float64(time.Second))+time.Millisecond)
}
