package gossip

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"grapevine.example/gossip/wire"
)

const (
	batchPayload    = 16 << 10 // a few packets: load never waits long behind a batch
	batchesPerFlush = 16       // 5 MB/s, far more news than engines make
	minDrain        = 256      // bytes worth asking Knowledge for
	houseInterval   = time.Second
	figuresInterval = 2 * time.Second        // they are shown to people
	stateInterval   = 5 * time.Second        // the state is learned over many requests
	stateGap        = 100 * time.Millisecond // bounds the cost of Touch
	drainPatience   = 250 * time.Millisecond // Stop's wait for peers to receive the last batches
)

type publisher struct {
	drain, body []byte
	loads       []Load
	uses        []Usage
	figures     []Figure
	claims      []byte
	figuresAt   time.Time
	time        int64
}

func (x *Exchange) publish() {
	var p publisher
	tick := time.NewTicker(x.flush)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			x.flushNews(&p, now)
		case <-x.ctx.Done():
			return
		}
	}
}

func (x *Exchange) flushNews(p *publisher, now time.Time) {
	ms := x.wall(now).UnixMilli()
	changed := false
	if p.uses = x.knowledge.Usage(p.uses[:0]); len(p.uses) > 0 || x.usage.begun() {
		used, beyond := x.usage.update(p.uses, ms)
		x.count(&x.stats.DroppedBound, uint64(beyond))
		changed = used
	}
	p.loads = x.knowledge.Loads(p.loads[:0]) // after usage, as on the streams
	loaded, beyond := x.loads.update(p.loads, ms)
	x.count(&x.stats.DroppedBound, uint64(beyond))
	changed = changed || loaded
	if now.Sub(p.figuresAt) >= figuresInterval {
		p.figuresAt, p.figures = now, x.knowledge.Figures(p.figures[:0])
		moved, beyond := x.figures.update(p.figures, ms)
		x.count(&x.stats.DroppedBound, uint64(beyond))
		changed = changed || moved
	}
	switch p.claims = x.knowledge.Claims(p.claims[:0]); {
	case len(p.claims) > wire.MaxClaims:
		x.log.Error().Int("bytes", len(p.claims)).Int("limit", wire.MaxClaims).Msg("claims beyond the bound: not sent")
		x.count(&x.stats.Malformed, 1)
	case len(p.claims) == 0 && !x.claims.begun():
	case x.claims.set(p.claims, ms):
		changed = true
	}
	subscribers := x.listSubscribers()
	left := x.budget.left(now)
	// Among very many subscribers half a bucket suffices; its debt is paid before the next flush.
	enough := min(minDrain*len(subscribers), int(x.budget.rate/2))
	for range batchesPerFlush {
		limit := batchPayload
		if n := len(subscribers); n > 0 {
			limit = min(limit, max(left/n, minDrain))
		}
		if left < enough {
			x.count(&x.stats.DroppedBudget, 1)
			break
		}
		payload, records := x.knowledge.Drain(p.drain[:0], limit)
		p.drain = payload[:0]
		if records <= 0 || len(payload) == 0 {
			break
		}
		if len(payload) > limit || records > wire.MaxRecords {
			x.log.Error().Int("bytes", len(payload)).Int("limit", limit).Int("records", records).Msg("batch beyond the bound: dropped")
			x.count(&x.stats.Malformed, 1)
			break
		}
		x.publishBatch(p, payload, records, ms)
		changed = true
		left -= len(payload) * len(subscribers)
		if len(payload) < limit/2 {
			break
		}
	}
	if changed {
		for _, d := range subscribers {
			d.poke()
		}
	}
}

func (x *Exchange) publishBatch(p *publisher, payload []byte, records int, ms int64) {
	p.time = max(p.time, ms) // the wall clock may be set back
	b := wire.Batch{Sequence: x.Position(), Time: p.time, Records: records, Payload: payload}
	p.body = b.AppendBody(p.body[:0])
	x.journal.append(p.body, p.time)
	x.count(&x.stats.PublishedBatches, 1)
	x.count(&x.stats.PublishedRecords, uint64(records))
	x.count(&x.stats.PublishedBytes, uint64(len(payload)))
}

func (x *Exchange) flushLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, x.flush+drainPatience)
	defer cancel()
	if len(x.listSubscribers()) == 0 {
		return
	}
	for more := sleep(ctx, x.flush+time.Millisecond); more; more = sleep(ctx, 5*time.Millisecond) {
		_, next := x.journal.position()
		if !slices.ContainsFunc(x.listSubscribers(), func(d *subscriber) bool { return d.position() < next }) {
			return
		}
	}
}

// stateSlot holds the latest of what replaces its predecessor: the state, or the claims.
type stateSlot struct {
	mu      sync.Mutex
	version uint64
	blob    []byte // replaced, never changed
	time    int64
}

func (s *stateSlot) set(blob []byte, ms int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version > 0 && bytes.Equal(s.blob, blob) {
		return false
	}
	s.version++
	s.blob, s.time = bytes.Clone(blob), ms
	return true
}

// begun is false until the first set.
func (s *stateSlot) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version > 0
}

func (s *stateSlot) get() (blob []byte, version uint64, ms int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blob, s.version, s.time
}

func (x *Exchange) keepHouse() {
	tick := time.NewTicker(houseInterval)
	defer tick.Stop()
	var (
		nodes     int
		stale     time.Duration
		announced bool
	)
	for now := time.Now(); ; {
		x.journal.age(x.wall(now).UnixMilli())
		if n, s := x.sweepPeers(now); !announced || n != nodes || moved(stale, s) {
			nodes, stale, announced = n, s, true
			x.knowledge.Fleet(nodes, stale)
		}
		select {
		case now = <-tick.C:
		case <-x.changed: // a joiner must not act as if it were alone for a second
			now = time.Now()
		case <-x.ctx.Done():
			return
		}
	}
}

// Touch sends Knowledge's State soon. It does not block.
func (x *Exchange) Touch() { wake(x.touched) }

func (x *Exchange) publishState() {
	var scratch []byte
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-timer.C:
		case <-x.touched:
			if wait := stateGap - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-x.ctx.Done():
			return
		}
		last = time.Now()
		scratch = x.collectState(scratch, last)
		timer.Reset(stateInterval)
	}
}

func moved(old, now time.Duration) bool {
	d := max(now-old, old-now)
	return d > 2*time.Millisecond && d > old/10
}

func (x *Exchange) collectState(scratch []byte, now time.Time) []byte {
	blob := x.knowledge.State(scratch[:0])
	if len(blob) > wire.MaxState {
		x.log.Error().Int("bytes", len(blob)).Int("limit", wire.MaxState).Msg("state beyond the bound: not sent")
		x.count(&x.stats.Malformed, 1)
		return blob[:0]
	}
	if x.state.set(blob, x.wall(now).UnixMilli()) {
		for _, d := range x.listSubscribers() {
			d.poke()
		}
	}
	return blob[:0]
}

// jitter returns 0.5 to 1.5 times d.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}
