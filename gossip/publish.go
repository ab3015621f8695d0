package gossip

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"grapevine/gossip/wire"
)

const (
	// batchPayload is how large a batch may become: a few packets, so that one lost batch is little to repair.
	batchPayload = 16 << 10
	// batchesPerFlush bounds what one flush takes out of Knowledge: 5 MB/s at the default interval, far more than engines
	// can compute prefixes for.
	batchesPerFlush = 16
	// minDrain is the least that is worth asking Knowledge for when the budget is short.
	minDrain = 256
	// houseInterval is how often slow things are looked at: ages, staleness, expiry.
	houseInterval = time.Second
	// stateInterval is how often the state is collected: it holds what is learned over many requests.
	stateInterval = 5 * time.Second
	// stateGap is the pause between two states of a node that has much to tell at once (Touch): it bounds what a storm of news costs.
	stateGap = 100 * time.Millisecond
	// digestInterval is how often digests are compared with a random peer, beside every reconnection.
	digestInterval = 10 * time.Second
	// drainPatience bounds how long Stop waits for peers to take the last batches.
	drainPatience = 250 * time.Millisecond
)

// publisher is what the publishing goroutine remembers from flush to flush.
type publisher struct {
	drain, body []byte
	loads       []Load
	next        uint64
	time        int64
}

// publish collects news and load until the fleet ends.
func (f *Fleet) publish() {
	p := publisher{next: 1}
	tick := time.NewTicker(f.flush)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			f.flushNews(&p, now)
		case <-f.ctx.Done():
			return
		}
	}
}

// flushNews takes what is new into the journal, from where every subscriber's feed reads it.
func (f *Fleet) flushNews(p *publisher, now time.Time) {
	ms := f.wall(now).UnixMilli()
	p.loads = f.knowledge.Loads(p.loads[:0])
	changed, beyond := f.loads.update(p.loads, ms)
	f.counts.droppedBound.Add(uint64(beyond))
	feeds := f.subscribers()
	left := f.budget.left(now)
	// Among very many subscribers even a full bucket may hold less than that for each: then half a bucket is enough, and the debt
	// is paid before the next.
	enough := min(minDrain*len(feeds), int(f.budget.rate/2))
	for range batchesPerFlush {
		limit := batchPayload
		if n := len(feeds); n > 0 {
			limit = min(limit, max(left/n, minDrain))
		}
		if left < enough {
			f.counts.heldBack.Add(1)
			break
		}
		payload, records := f.knowledge.Drain(p.drain[:0], limit)
		p.drain = payload[:0]
		if records <= 0 || len(payload) == 0 {
			break
		}
		if len(payload) > limit || records > wire.MaxRecords {
			f.log.Error().Int("bytes", len(payload)).Int("limit", limit).Int("records", records).Msg("news beyond the bound: dropped")
			f.counts.malformed.Add(1)
			break
		}
		f.publishBatch(p, payload, records, ms)
		changed = true
		left -= len(payload) * len(feeds)
		if len(payload) < limit/2 {
			break // that was all
		}
	}
	if changed {
		for _, d := range feeds {
			d.poke()
		}
	}
}

func (f *Fleet) publishBatch(p *publisher, payload []byte, records int, ms int64) {
	p.time = max(p.time, ms) // the wall clock may be set back; batches of one origin never go back
	b := wire.Batch{Sequence: p.next, Time: p.time, Records: records, Payload: payload}
	p.next++
	p.body = b.AppendBody(p.body[:0])
	f.journal.add(f.self, &b, p.body, 0, ms)
	f.counts.publishedBatches.Add(1)
	f.counts.publishedRecords.Add(uint64(records))
	f.counts.publishedBytes.Add(uint64(len(payload)))
}

// flushLast waits until the next flush has been written to every subscriber that keeps up.
func (f *Fleet) flushLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, f.flush+drainPatience)
	defer cancel()
	if len(f.subscribers()) == 0 {
		return
	}
	wait := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for more := wait(f.flush + time.Millisecond); more; more = wait(5 * time.Millisecond) {
		_, head, _ := f.journal.position(f.self)
		behind := 0
		for _, d := range f.subscribers() {
			if d.position() < head {
				behind++
			}
		}
		if behind == 0 {
			return
		}
	}
}

// stateSlot is this node's latest state.
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

func (s *stateSlot) get() (blob []byte, version uint64, ms int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blob, s.version, s.time
}

// keepHouse does what is due every second or more rarely, until the fleet ends.
func (f *Fleet) keepHouse() {
	tick := time.NewTicker(houseInterval)
	defer tick.Stop()
	var (
		nodes     int
		stale     time.Duration
		digestAt  = time.Now().Add(jitter(digestInterval))
		learnAt   time.Time
		announced bool
	)
	for now := time.Now(); ; {
		f.journal.age(f.wall(now).UnixMilli())
		if n, s := f.sweepPeers(now); !announced || n != nodes || moved(stale, s) {
			nodes, stale, announced = n, s, true
			f.knowledge.Fleet(nodes, stale)
		}
		if now.After(digestAt) {
			digestAt = now.Add(jitter(digestInterval))
			if open := f.sessions(); len(open) > 0 {
				open[rand.IntN(len(open))].askDigest(now)
			}
		}
		if now.After(learnAt) && f.warming.warm() {
			if from := f.relearn.Swap(nil); from != nil {
				learnAt = now.Add(relearnInterval)
				f.spawn(func() { f.learnAgain(*from) })
			}
		}
		select {
		case now = <-tick.C:
		case <-f.ctx.Done():
			return
		}
	}
}

// Touch says that the knowledge's State has something that the others should know now, and not within seconds.
func (f *Fleet) Touch() {
	select {
	case f.touched <- struct{}{}:
	default:
	}
}

// tellState collects the state every few seconds, and soon after a Touch, until the fleet ends.
func (f *Fleet) tellState() {
	var scratch []byte
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-timer.C:
		case <-f.touched:
			if wait := stateGap - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-f.ctx.Done():
			return
		}
		last = time.Now()
		scratch = f.collectState(scratch, last)
		timer.Reset(stateInterval)
	}
}

// moved reports whether a staleness has changed by so much that a policy might care.
func moved(old, now time.Duration) bool {
	d := max(now-old, old-now)
	return d > 2*time.Millisecond && d > old/10
}

func (f *Fleet) collectState(scratch []byte, now time.Time) []byte {
	blob := f.knowledge.State(scratch[:0])
	if len(blob) > wire.MaxState {
		f.log.Error().Int("bytes", len(blob)).Int("limit", wire.MaxState).Msg("state beyond the bound: not sent")
		f.counts.malformed.Add(1)
		return blob[:0]
	}
	if f.state.set(blob, f.wall(now).UnixMilli()) {
		for _, d := range f.subscribers() {
			d.poke()
		}
	}
	return blob[:0]
}

// jitter spreads a pause over half to one and a half times d, so that nodes that began together do not go on together.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}
