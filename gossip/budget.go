package gossip

import (
	"sync"
	"time"
)

// budget is a token bucket over sent bytes. News is debited even below zero; bulk (resumed batches,
// snapshots) asks first and has a share of its own. Safe for concurrent use.
type budget struct {
	mu     sync.Mutex
	rate   float64 // bytes per second
	tokens float64 // at most one second's worth
	share  float64 // of bulk; at most one second's worth
	at     time.Time
}

func newBudget(rate int64, now time.Time) *budget {
	return &budget{rate: float64(rate), tokens: float64(rate), share: bulkShare * float64(rate), at: now}
}

func (b *budget) refillLocked(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.rate, b.tokens+b.rate*d.Seconds())
		b.share = min(bulkShare*b.rate, b.share+bulkShare*b.rate*d.Seconds())
	}
	b.at = now
}

func (b *budget) spend(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	b.tokens = max(-b.rate, b.tokens-float64(n))
}

func (b *budget) left(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	return int(max(0, b.tokens))
}

const (
	bulkReserve = 0.25    // of a full bucket, left to news
	bulkShare   = 0.25    // of the rate, reserved for bulk
	minPiece    = 4 << 10 // bytes worth a write
)

// piece returns the bytes of bulk per write, so that the share allows the next one within a second.
func (b *budget) piece(limit int) int {
	return min(limit, max(minPiece, int(b.rate*bulkShare/2)))
}

// bulk returns 0 if n bytes of bulk may be sent now, else the wait before asking again.
func (b *budget) bulk(now time.Time, n int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	// A large piece is sent once half the bucket is there, and paid back later.
	need := min(float64(n)+bulkReserve*b.rate, b.rate/2)
	if b.tokens >= need || b.share >= 0 {
		return 0
	}
	seconds := min((need-b.tokens)/b.rate, -b.share/(bulkShare*b.rate))
	return min(time.Second, time.Duration(seconds*float64(time.Second))+time.Millisecond)
}

// bulked debits only the share; spend debits the bucket.
func (b *budget) bulked(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share = max(-bulkShare*b.rate, b.share-float64(n))
}
