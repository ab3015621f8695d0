package history

import (
	"math"
	"sync"
	"time"

	"grapevine.example/prefixtree"
)

// Baseline estimates the hit rate that the same requests would have if each went to an engine drawn
// at random, as round robin sends interleaved traffic.
//
// A block that k requests had in the time that an engine keeps it would be at one of N engines with
// probability 1-(1-1/N)^k. Of the k visits a node sees those that the balancer sent to it: x, one in
// n of them. 1-(1-n/N)^x has the same mean. Only blocks whose hash lies below a threshold are
// counted, so the memory is bounded, and a block is counted at all its visits or at none. That the
// sample has fewer or more visits than its share is due to a few blocks of very many requests, which
// all engines hold: the difference counts as hits (SHARDS-adj of Waldspurger et al., FAST 2015).
//
// Safe for concurrent use.
type Baseline struct {
	counts *Counts

	mu     sync.Mutex
	visits map[prefixtree.Hash]visits
	below  uint64 // hashes below are counted
	judged uint64 // hashes below were counted for a whole window
	window time.Duration
	epoch  uint32 // number of the current window
	began  time.Time
	owed   float64 // hits that are not in counts yet; may be negative
}

type visits struct {
	epoch     uint32
	now, last float32 // in this window, and in the one before
}

const (
	// maxBlocks bounds the memory, 0.2 MB with the map's own, and, where many requests come, the time.
	maxBlocks = 1 << 12
	// firstShare: one block in so many is counted until there are too many.
	firstShare  = 16
	leastWindow = 200 * time.Millisecond
	firstWindow = time.Minute
)

// NewBaseline counts into counts.
func NewBaseline(counts *Counts, at time.Time) *Baseline {
	const first = math.MaxUint64 / firstShare
	return &Baseline{counts: counts, visits: make(map[prefixtree.Hash]visits), below: first, judged: first, window: firstWindow, began: at}
}

// Visit counts the blocks of a request that one of the engines gets, in a fleet of nodes.
func (b *Baseline) Visit(hashes []prefixtree.Hash, engines, nodes int, at time.Time) {
	if engines <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(at)
	logMiss := math.Log(max(1-float64(nodes)/float64(engines), 0)) // -Inf: any visit was to all engines
	blocks, hits := 0, 0.0
	for _, h := range hashes {
		place := uint64(h) * 0x9e3779b97f4a7c15
		if place >= b.below {
			continue
		}
		v, known := b.visits[h]
		b.turn(&v)
		if place < b.judged {
			blocks++
			passed := min(max(float64(at.Sub(b.began))/float64(b.window), 0), 1)
			if x := float64(v.now) + float64(v.last)*(1-passed); x > 0 {
				hits += 1 - math.Exp(x*logMiss)
			}
		}
		v.now++
		if !known && len(b.visits) == maxBlocks {
			b.halve()
			if place >= b.below {
				continue
			}
		}
		b.visits[h] = v
	}
	visits := float64(len(hashes)) * float64(b.judged) / math.MaxUint64
	b.counts[randomBlocks].Add(uint64(hitUnit * visits))
	if b.owed += hits + visits - float64(blocks); b.owed > 0 {
		b.counts[randomHits].Add(uint64(hitUnit * b.owed))
		b.owed -= float64(uint64(hitUnit*b.owed)) / hitUnit
	}
}

// turn brings a block's counts to the current window.
func (b *Baseline) turn(v *visits) {
	switch b.epoch - v.epoch {
	case 0:
	case 1:
		v.last, v.now = v.now, 0
	default:
		v.last, v.now = 0, 0
	}
	v.epoch = b.epoch
}

// halve counts half as many blocks from now on.
func (b *Baseline) halve() {
	b.below /= 2
	b.judged = min(b.judged, b.below)
	for h := range b.visits {
		if uint64(h)*0x9e3779b97f4a7c15 >= b.below {
			delete(b.visits, h)
		}
	}
}

// Keep says for how long an engine would keep a block that no request uses, from now on.
func (b *Baseline) Keep(window time.Duration, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(at)
	b.window = max(window, leastWindow)
}

// end begins another window where the current one is over.
func (b *Baseline) end(at time.Time) {
	if at.Sub(b.began) < b.window {
		return
	}
	b.epoch, b.began, b.judged = b.epoch+1, at, b.below
	for h, v := range b.visits {
		if b.epoch-v.epoch > 1 {
			delete(b.visits, h)
		}
	}
	if len(b.visits) < maxBlocks/8 && b.below <= math.MaxUint64/2 {
		b.below *= 2
	}
}

// Horizon returns for how long engines would keep a block under round robin, given how long they keep
// it now and both hit rates: what misses evicts. Without hit rates it is now.
func Horizon(now time.Duration, hitRate, random float64) time.Duration {
	if math.IsNaN(hitRate) || math.IsNaN(random) || random >= hitRate {
		return now
	}
	return time.Duration(float64(now) * max(1-hitRate, 0.01) / (1 - random))
}
