package gossip

import (
	"sync"
	"time"
)

// budget is a token bucket over the bytes this node sends. What cannot wait is debited even below
// zero; what can, asks first. Resumed batches and snapshots ("bulk") have a share of their own in
// it, so that endless news does not stop them: news gets only what they leave. Safe for concurrent
// use.
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

// spend debits n bytes that were sent. The debt is bounded by one second's worth, so that a burst
// of what cannot wait does not silence the rest for longer.
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

const (
	// bulkReserve is the share of a full bucket that bulk leaves to news.
	bulkReserve = 0.25
	// bulkShare is the share of the rate that bulk gets even if news would take all.
	bulkShare = 0.25
	// minPiece is the smallest piece of bulk that is worth a write, in bytes.
	minPiece = 4 << 10
)

// piece is how many bytes of bulk are sent at a time, at most limit: so many that the share allows
// the next piece within a second.
func (b *budget) piece(limit int) int {
	return min(limit, max(minPiece, int(b.rate*bulkShare/2)))
}

// bulk returns 0 if n bytes of bulk may be sent now, else how long to wait before asking again.
func (b *budget) bulk(now time.Time, n int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	// What is larger than half the bucket goes when half is there, and is paid back later.
	need := min(float64(n)+bulkReserve*b.rate, b.rate/2)
	if b.tokens >= need || b.share >= 0 {
		return 0
	}
	seconds := min((need-b.tokens)/b.rate, -b.share/(bulkShare*b.rate))
	return min(time.Second, time.Duration(seconds*float64(time.Second))+time.Millisecond)
}

// bulked debits the share with n bytes of bulk that are about to be sent; spend debits the bucket
// when they are. The debt is bounded like that of spend.
func (b *budget) bulked(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share = max(-bulkShare*b.rate, b.share-float64(n))
}
