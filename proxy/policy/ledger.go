package policy

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

// slot is the own load and the learned manner of one backend generation. A Pick reads the first cache line of every
// candidate, so what it reads stands together and every slot is a multiple of 64 bytes (held by a test).
//
// The counters are exact: what Pick adds, the same Attempt takes back. mu guards the line of prefills, the rate sums and
// the failure state; readers use the atomics only and may see one change before the other, which is harmless for a score.
type slot struct {
	charged    atomic.Int64  // prefill tokens of own requests that have had no first token
	active     atomic.Int64  // own requests that have not ended
	headTokens atomic.Int64  // charge of the request whose prefill is believed to run now; 0 for none
	headSince  atomic.Int64  // when that prefill is believed to have begun, ms
	rate       atomic.Uint64 // learned prefill rate, tokens/s as float64 bits; 0 until learned
	retryAt    atomic.Int64  // ms; 0 healthy, else the backend is avoided until then; see health
	peerTokens atomic.Int64  // prefill tokens outstanding as other nodes report them, summed over origins
	peerActive atomic.Int64  // the same for active requests

	resident  atomic.Int64 // prompt and output tokens of own active requests: the KV memory they pin
	headAhead atomic.Int64 // peers' tokens in front of the head when it joined the line, or since its predecessor did
	trial     atomic.Bool  // the one half-open request is under way
	ejected   atomic.Bool  // left alone for failures of own requests: half-open after retryAt
	// byRequests: ejected for other failures than refused connections; mayEject bounds these.
	byRequests atomic.Bool
	struck     atomic.Bool // strikes.by is not empty
	headWhole  atomic.Bool // the head is a whole request
	scant      atomic.Bool // the rate stands on less than its prior's weight
	telemetry  atomic.Pointer[Telemetry]
	id         prefixtree.Backend
	gen        atomic.Uint32 // see Backend.Generation
	began      atomic.Int64  // ms; when the backend began anew, see easeIn; 0 long ago
	credit     atomic.Int64  // of requests while it is cold, in millionths
	answerAt   atomic.Int64  // ms; when it last showed that it lives

	mu          sync.Mutex
	first, last *Attempt // own requests waiting for their first token, oldest first (engines admit in order)
	whole       int64    // charges of the whole ones among these
	lastFirst   prefixtree.Time
	rates       rateSums        // own measurements
	peerRates   rateSums        // the other nodes'
	measured    prefixtree.Time // when rates were last added to
	strikes     strikes
	reportedAt  prefixtree.Time // since when others say that it fails; 0 they do not
	busyAt      prefixtree.Time // of its last answer of 429
	busyUntil   int64           // ms; 0 for none
	adapters    adapterSet
	inferred    inferred
	_           [48]byte // to the end of a cache line
}

// overdueGrace is how many seconds a prefill may take longer than expected before that counts: steps of a busy engine are
// tenths of a second, and rates are averages.
const overdueGrace = 1.0

// queued returns the own prefill tokens still to be computed before a request that arrived now: all that is outstanding,
// less what the running prefill must have done since it began. Without that part a 100k-token prefill that is nearly done
// looks like a full queue. An own prefill behind work of peers begins when theirs is done.
//
// overdue is the seconds by which the running prefill is late. Then the engine is slow or stuck, waits for memory, or
// computes what it was believed to hold; nobody says which (DESIGN.md, "Load").
//
// Of a whole request nobody tells when its prefill is done: it is never late, and leaves the line when it must be; see settle.
func (s *slot) queued(now prefixtree.Time, rate float64) (tokens, overdue float64) {
	tokens = float64(s.charged.Load())
	head := float64(s.headTokens.Load())
	if head <= 0 {
		return max(tokens, 0), 0
	}
	ran, whole := s.ran(now, rate), s.headWhole.Load()
	if whole && ran*rate >= head {
		s.settle(now, rate)
		tokens, head = float64(s.charged.Load()), float64(s.headTokens.Load())
		ran, whole = s.ran(now, rate), s.headWhole.Load()
	}
	if head > 0 {
		tokens -= min(head, ran*rate)
	}
	if head > 0 && !whole {
		overdue = max(ran-head/rate-overdueGrace, 0)
	}
	return max(tokens, 0), overdue
}

// ran returns the seconds for which the prefill at the head of the line must have been running.
func (s *slot) ran(now prefixtree.Time, rate float64) float64 {
	return max(seconds(prefixtree.Time(s.headSince.Load()), now)-float64(s.headAhead.Load())/rate, 0)
}

// charge books a picked attempt: one active request, its uncached tokens, and a place in the line.
func (s *slot) charge(a *Attempt, now prefixtree.Time) {
	s.active.Add(1)
	s.charged.Add(a.charged)
	s.resident.Add(a.resident)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.prev, a.next = s.last, nil
	a.ahead = s.peerTokens.Load()
	a.since, a.front = now, s.whole
	if a.inferred {
		s.chargeInferred(a)
	}
	if a.whole {
		s.whole += a.charged
	}
	if s.last != nil {
		s.last.next = a
	} else {
		s.first = a
		s.headed(a, a.ahead, now)
	}
	s.last = a
	a.inLine = true
}

// headed notes the new head of the line: with so many tokens of peers in front, it runs since then. The lock must be held.
func (s *slot) headed(a *Attempt, ahead int64, since prefixtree.Time) {
	s.headWhole.Store(a.whole)
	s.headAhead.Store(ahead)
	s.headSince.Store(int64(since))
	s.headTokens.Store(a.charged)
}

// started moves the beginning of the head's prefill to its dispatch.
func (s *slot) started(a *Attempt, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.since = now
	if s.first == a {
		s.headSince.Store(int64(now))
	}
}

// prefilled takes the attempt out of the line and gives its prefill charge back. Calling it again does nothing. With its first token
// the whole requests in front of it have been prefilled, too.
func (s *slot) prefilled(a *Attempt, now prefixtree.Time, token bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.inLine {
		return
	}
	for p := s.first; token && s.whole > 0 && p != a; {
		next := p.next
		if p.whole {
			s.leave(p, now, now)
		}
		p = next
	}
	s.leave(a, now, now)
}

// leave takes an attempt that was done at a moment out of the line; the lock must be held.
func (s *slot) leave(a *Attempt, done, now prefixtree.Time) {
	a.inLine = false
	if a.whole {
		s.whole -= a.charged
	}
	wasHead := s.first == a
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		s.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		s.last = a.prev
	}
	a.prev, a.next = nil, nil
	s.charged.Add(-a.charged)
	if !wasHead {
		return
	}
	if s.first == nil {
		s.headTokens.Store(0)
		return
	}
	s.headed(s.first, max(s.first.ahead-a.ahead, 0), min(max(done, s.first.since), now))
}

// release ends the attempt's claim on the backend; prefilled must have been called.
func (s *slot) release(a *Attempt) {
	s.active.Add(-1)
	s.resident.Add(-a.resident)
}

// rateOr returns the learned rate, or the prior without one. As long as there is little behind it a backend may be slower than the prior, but
// not faster: the first to be measured in an idle fleet would draw everything that comes, since nothing is known of the others.
func (s *slot) rateOr(prior float64) float64 {
	r := math.Float64frombits(s.rate.Load())
	if r <= 0 || r > prior && s.scant.Load() {
		return prior
	}
	return r
}

// Telemetry is what an engine says of itself (its metrics), as far as the weighted scorers use it. Zero values mean idle.
type Telemetry struct {
	Running, Waiting int
	KVUsage          float64 // share of the KV cache in use, 0 to 1
}

// ledger holds the slot of every backend that a view, or another node's report, has ever named. Safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	slots    map[prefixtree.Backend]*slot
	replaced []*slot // of earlier generations; those on which requests still ran when the last one was added
}

// of returns the present slot of a backend, made if new: other nodes' reports may come before the view that has the backend.
func (l *ledger) of(id prefixtree.Backend) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[id]
	if s == nil {
		s = &slot{id: id}
		l.slots[id] = s
	}
	return s
}

// slot returns the slot of a backend generation, made if new. The slot of an unknown generation becomes that of the first known one.
func (l *ledger) slot(id prefixtree.Backend, gen uint32) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[id]
	switch {
	case s != nil && (gen == 0 || s.gen.CompareAndSwap(0, gen) || s.gen.Load() == gen):
		return s
	case s != nil:
		l.replaced = append(slices.DeleteFunc(l.replaced, (*slot).unused), s)
	}
	s = &slot{id: id}
	s.gen.Store(gen)
	l.slots[id] = s
	return s
}

// unused says whether no request runs on the slot.
func (s *slot) unused() bool { return s.active.Load() == 0 }

// drop forgets the slot of a backend, unless requests run on it or on one of the backend's earlier generations.
func (l *ledger) drop(id prefixtree.Backend) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.slots[id]; s != nil && !s.unused() || slices.ContainsFunc(l.replaced, func(s *slot) bool { return s.id == id && !s.unused() }) {
		return false
	}
	delete(l.slots, id)
	return true
}

// adapterSet remembers the last few LoRA adapters sent to a backend: an engine keeps a few loaded and drops the oldest.
type adapterSet struct {
	names [adapterSlots]uint64
	next  int
}

// adapterSlots is vLLM's usual ceiling for adapters resident at once (max_loras is rarely above 8).
const adapterSlots = 8

func (s *adapterSet) has(name uint64) bool {
	for _, n := range s.names {
		if n == name {
			return true
		}
	}
	return false
}

func (s *adapterSet) add(name uint64) {
	if s.has(name) {
		return
	}
	s.names[s.next] = name
	s.next = (s.next + 1) % adapterSlots
}
