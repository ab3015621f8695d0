package policy

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

// slot holds this node's load on one backend generation, its rate and its failure state. Pick reads
// the first cache line of every candidate, so its fields come first and the size is a multiple of
// 64 bytes. mu guards the non-atomic fields; the atomics may differ by moments.
//
// Lock order: viewMu or peerLoads.mu, then ledger.mu or slot.mu; ejecting, then slot.mu, then fleetRate.mu. All
// other locks are leaves.
type slot struct {
	charged    atomic.Int64 // prefill tokens of own requests before their first token
	active     atomic.Int64
	headTokens atomic.Int64  // charge of the prefill that runs; 0: none
	headSince  atomic.Int64  // ms; estimated start of that prefill
	measured   atomic.Uint64 // rates and peerRates: tokens and seconds as float32
	retryAt    atomic.Int64  // ms; 0: healthy, else avoided until then; see health
	peerTokens atomic.Int64  // outstanding prefill tokens that peers report
	peerActive atomic.Int64  // active requests that peers report

	bucket    atomic.Int64 // see fullBucket
	headAhead atomic.Int64 // peers' tokens in front of the head of the line
	turned    atomic.Int64 // ms; when the engine began the prefill that runs, of whichever node; see ahead
	peerMost  atomic.Int64 // the most prefill tokens that one peer reports
	trial     atomic.Bool
	ejected   atomic.Bool // own requests failed: half-open after retryAt
	// byRequests: ejected by other failures than refused connections.
	byRequests       atomic.Bool
	struck           atomic.Bool
	headNonStreaming atomic.Bool // the head's first token is not observable
	telemetry        atomic.Pointer[telemetry]
	placed           atomic.Int64 // prefill tokens charged so far
	pending          atomic.Int64 // own requests before their first token
	parked           atomic.Int64 // prefill tokens of requests that wait at this router for the backend
	id               prefixtree.Backend
	gen              atomic.Uint32
	began            atomic.Int64 // ms; start of slow start; 0: none
	answerAt         atomic.Int64

	mu           sync.Mutex
	line         []*Attempt // own requests before their first token, in order of admission
	late         []*Attempt // own requests that peers' reports may still overtake
	nonStreaming int64      // charges of non-streamed requests in the line
	lastFirst    prefixtree.Time
	rates        rateSums
	peerRates    rateSums // measured by other nodes
	reported     rateSums // by the engine
	strikes      strikes
	reportedAt   prefixtree.Time // since when other nodes report failures; 0: none
	busyAt       prefixtree.Time // last answer of 429
	busyUntil    int64           // ms; 0: none
	adapters     adapters
	growth       growth
	resident     atomic.Int64 // prompt and output tokens of own active requests, which pin KV memory
	_            [8]byte      // pads to a cache line
}

// queued returns the own prefill tokens in front of a new request, less the progress of the running
// prefill, which is overdue by so many seconds. A non-streamed one never is: it leaves the line
// when it must be computed.
func (s *slot) queued(now prefixtree.Time, rate float64) (tokens, overdue float64) {
	tokens = float64(s.charged.Load())
	head := float64(s.headTokens.Load())
	if head <= 0 {
		return max(tokens, 0), 0
	}
	ran, hidden := s.ran(now, rate), s.headNonStreaming.Load()
	if hidden && ran*rate >= head {
		s.settle(now, rate)
		tokens, head = float64(s.charged.Load()), float64(s.headTokens.Load())
		ran, hidden = s.ran(now, rate), s.headNonStreaming.Load()
	}
	if head > 0 {
		tokens -= min(head, ran*rate)
	}
	if head > 0 && !hidden {
		overdue = max(ran-head/rate, 0)
	}
	return max(tokens, 0), overdue
}

// ahead returns all nodes' prefill tokens in front of a new request, of which so many are own. Peers
// report a charge in full until its first token. The engine computes in order of arrival, so since the
// latest first token of any node's request it has computed a part of the next one, which is no larger
// than the largest charge.
func (s *slot) ahead(own float64, now prefixtree.Time, rate float64) float64 {
	peers := float64(s.peerTokens.Load())
	if peers <= 0 {
		return own
	}
	largest := float64(max(s.peerMost.Load(), s.headTokens.Load()))
	computed := min(rate*seconds(prefixtree.Time(s.turned.Load()), now), largest)
	return max(own, float64(s.charged.Load())+peers-computed)
}

// turn notes that the engine begins another prefill. Needs mu.
func (s *slot) turn(now prefixtree.Time) { s.turned.Store(max(s.turned.Load(), int64(now))) }

func (s *slot) ran(now prefixtree.Time, rate float64) float64 {
	return max(seconds(prefixtree.Time(s.headSince.Load()), now)-float64(s.headAhead.Load())/rate, 0)
}

func (s *slot) charge(a *Attempt, now prefixtree.Time) {
	s.active.Add(1)
	s.charged.Add(a.charged)
	s.placed.Add(a.charged)
	s.resident.Add(a.resident)
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.ahead = s.peerTokens.Load(); a.ahead <= 0 && len(s.line) == 0 {
		s.turn(now)
	}
	if s.forgetSettled(now); a.settled > now {
		s.late = append(s.late, a)
	}
	a.since, a.front = now, s.nonStreaming
	if a.nonStreaming {
		s.nonStreaming += a.charged
	}
	if s.line = append(s.line, a); len(s.line) == 1 {
		s.headed(a, a.ahead, now)
	}
	s.pending.Store(int64(len(s.line)))
}

// overtaken takes a report that a peer has so many more prefill tokens on the backend. The peer placed them before the own requests
// that were picked within the reports' staleness: the engine computes them first.
func (s *slot) overtaken(tokens int64, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetSettled(now)
	for _, a := range s.late {
		a.ahead += tokens
		if len(s.line) > 0 && s.line[0] == a {
			s.headAhead.Add(tokens)
		}
	}
}

// forgetSettled needs mu.
func (s *slot) forgetSettled(now prefixtree.Time) {
	s.late = slices.DeleteFunc(s.late, func(a *Attempt) bool { return a.settled < now })
}

// headed sets the head of the line. Needs mu.
func (s *slot) headed(a *Attempt, ahead int64, since prefixtree.Time) {
	s.headNonStreaming.Store(a.nonStreaming)
	s.headAhead.Store(ahead)
	s.headSince.Store(int64(since))
	s.headTokens.Store(a.charged)
}

func (s *slot) started(a *Attempt, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.since = now
	if len(s.line) > 0 && s.line[0] == a {
		s.headSince.Store(int64(now))
	}
}

// prefilled releases the charge, once. A first token proves that non-streamed requests in front are
// prefilled too.
func (s *slot) prefilled(a *Attempt, now prefixtree.Time, token bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.line, a) {
		return
	}
	at := 0
	for s.line[at] != a {
		if token && s.line[at].nonStreaming {
			s.leave(at, now, now)
		} else {
			at++
		}
	}
	s.leave(at, now, now)
}

// leave takes an attempt, done at that time, out of the line. Needs mu.
func (s *slot) leave(at int, done, now prefixtree.Time) {
	a := s.line[at]
	if a.nonStreaming {
		s.nonStreaming -= a.charged
	}
	s.charged.Add(-a.charged)
	s.line = slices.Delete(s.line, at, at+1)
	s.pending.Store(int64(len(s.line)))
	if at > 0 {
		return
	}
	s.turn(done)
	if len(s.line) == 0 {
		s.headTokens.Store(0)
	} else {
		next := s.line[0]
		s.headed(next, max(next.ahead-a.ahead, 0), min(max(done, next.since), now))
	}
}

// settle removes non-streamed requests from the head of the line once their prefill must be done:
// they end long after it, and counted until then, their engine would look stuck.
func (s *slot) settle(now prefixtree.Time, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.line) > 0 && s.line[0].nonStreaming {
		took := float64(s.headAhead.Load()+s.line[0].charged) / rate
		done := s.headSince.Load() + int64(math.Ceil(min(took*1000, math.MaxInt32)))
		if done > int64(now) {
			return
		}
		s.leave(0, prefixtree.Time(done), now)
	}
}

func (s *slot) release(a *Attempt) {
	if a.settled > 0 { // not of a router that is alone
		s.mu.Lock()
		if i := slices.Index(s.late, a); i >= 0 {
			s.late = slices.Delete(s.late, i, i+1)
		}
		s.mu.Unlock()
	}
	s.active.Add(-1)
	s.resident.Add(-a.resident)
}

// rateOr returns the learned rate, or the prior without measurements. With little evidence only a
// slower one counts: else the first measured backend of an idle fleet would attract all requests.
func (s *slot) rateOr(prior float64) float64 {
	bits := s.measured.Load()
	if bits == 0 {
		return prior
	}
	sums := rateSums{tokens: float64(math.Float32frombits(uint32(bits >> 32))), seconds: float64(math.Float32frombits(uint32(bits)))}
	if sums.seconds < ratePrior && sums.tokens > prior*sums.seconds {
		return prior
	}
	return sums.estimate(prior, ratePrior)
}

// ledger holds all slots. Safe for concurrent use.
type ledger struct {
	seed     uint64
	mu       sync.Mutex
	slots    map[prefixtree.Backend]*slot
	replaced []*slot // slots of earlier generations on which requests still ran
}

// of creates a missing slot: peers' reports may precede the view.
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

// slot creates a missing slot. One of unknown generation takes the first known.
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
	s.bucket.Store(int64(mix(mix(l.seed)+uint64(id)) % fullBucket))
	l.slots[id] = s
	return s
}

func (s *slot) unused() bool { return s.active.Load() == 0 }

// drop forgets a backend unless requests run on it, of whatever generation.
func (l *ledger) drop(id prefixtree.Backend) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.slots[id]; s != nil && !s.unused() || slices.ContainsFunc(l.replaced, func(s *slot) bool { return s.id == id && !s.unused() }) {
		return false
	}
	delete(l.slots, id)
	return true
}
