// Package health judges engines by what probes and requests of several nodes
// have shown: which engines a node probes, what it tells the others, which it
// leaves alone, and what the fleet should write down.
//
// It is a book, not an actor: time is a parameter, and there are no sockets,
// goroutines, clocks or logs in here. DESIGN.md of node says how it is wired.
package health

import (
	"cmp"
	"sync"
	"time"
)

// Reason says what is wrong with an engine.
type Reason uint8

// The reasons. Answers of 4xx are none: they prove that the engine lives.
const (
	NoReason  Reason = iota
	Refused          // nothing listens
	Connect          // no connection for another reason
	Timeout          // connected, and no answer in time
	Reset            // connection lost before the answer
	Status5xx        // answered 5xx
	TLS              // no TLS, or a certificate that is not trusted
	reasons
)

var reasonNames = [reasons]string{"none", "refused", "connect", "timeout", "reset", "5xx", "tls"}

// String gives the reason as metrics, logs and the fleet's state show it.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "other" // a newer node's
}

const (
	// Reporters is how many nodes probe one engine: a majority of three outvotes
	// one whose own network is at fault, and engines see three small requests a
	// second whatever the size of the fleet.
	Reporters = 3
	// failsToBad probes in a row turn a reporter's word to failing; the second
	// comes soon after the first (retryAfter). One alone may be bad luck.
	failsToBad = 2
	// timeoutsToBad probes in a row, of which it took the connections and answered
	// none in time, do the same: an engine in the middle of a long prefill, or a
	// machine that is short of memory, is as silent as one that hangs, and to take
	// its work away for that costs its cache. With a timeout of 1.5 s, ten seconds.
	timeoutsToBad = 6
	// goodsToOK probes in a row turn it back. An engine that starts answers a
	// probe or two before it falls over again.
	goodsToOK = 3
	// suspicionLasts is how long a failed request makes reporters probe at once.
	suspicionLasts = 2 * time.Second
	// retryAfter is the pause before a failed or a wanted probe is repeated.
	retryAfter = 150 * time.Millisecond
	// confirmAfter is the pause before the next probe of an engine that answers again:
	// it has to answer goodsToOK of them before it is given work.
	confirmAfter = 250 * time.Millisecond
	// For quickFor after an engine has failed it is probed four times as often as a healthy
	// one, since it may just be restarting: but each that fails so makes that rarer for
	// all by quickShare, so that a node probes 250 a second that fail.
	quickFor   = 30 * time.Second
	quickShare = 4 * time.Millisecond
	// ejectShare: what other nodes' failed requests say keeps this node away from one
	// engine in so many at most, and from one in any fleet.
	ejectShare = 5
	// grace is how long the word of one node is enough to leave an engine alone:
	// in that time all its reporters have probed it themselves, and outvote it if
	// it was mistaken.
	grace = 2500 * time.Millisecond
)

// Prefix begins the reason of every state that was written down by the fleet
// itself, for people.
const Prefix = "health: "

// Backend is one engine as the fleet has agreed on it.
type Backend struct {
	Key        uint32 // of its name, by which nodes speak of it
	Name       string
	Generation uint32
	Version    uint64 // of the last change of what was agreed on of it
	Down       bool
	Ours       bool   // it was the fleet itself that took it down; else it is an operator's affair
	Reason     string // of the last change of state
}

// Report is what one node says of one engine.
type Report struct {
	Backend uint32 // key of its name
	OK      bool   // it is one of the node's to probe, and answers
	Failing bool
	Passive bool // Failing by requests alone: probes may go well
	Suspect bool // a request has just failed: probe it now
	Reason  Reason
	Since   uint32 // Unix seconds; when Failing began, or OK
	Started uint32 // Unix seconds; when its process began, as its metrics say; 0 not told
}

// Config says for whom and how often.
type Config struct {
	Self     string        // this node's name
	Interval time.Duration // between two probes of a healthy engine
	Timeout  time.Duration // of one probe
	// Jitter gives numbers from 0 to 1 that spread probes; nil is 0.5 always.
	Jitter func() float64
}

// Board is what one node knows of all engines' health. Safe for concurrent use.
type Board struct {
	cfg Config

	mu      sync.Mutex
	engines map[uint32]*engine
	failing int                 // engines that this node's probes find failing; as of the last Due
	nodes   []string            // alive and heard lately, this one included, sorted
	said    map[string][]Report // by node: its latest word on all engines, known here or not yet
	writing pacer
}

// engine is everything known of one engine.
type engine struct {
	Backend
	mine      bool     // this node probes it
	reporters []string // the nodes that do
	own       own
	peers     []peerReport // in no order; few
	restart   restart
	written   written
}

// peerReport is another node's latest word.
type peerReport struct {
	origin string
	Report
	failingAt time.Time // when its Failing came; zero while it is not
}

// New returns an empty board.
func New(cfg Config) *Board {
	if cfg.Jitter == nil {
		cfg.Jitter = func() float64 { return 0.5 }
	}
	return &Board{cfg: cfg, engines: make(map[uint32]*engine), nodes: []string{cfg.Self}, said: make(map[string][]Report)}
}

// SetBackends replaces the list of engines. What is known of those that stay is
// kept; one of a new generation begins anew but for what others say of it.
func (b *Board) SetBackends(list []Backend, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	present := make(map[uint32]bool, len(list))
	for _, n := range list {
		present[n.Key] = true
		e := b.engines[n.Key]
		if e == nil {
			e = &engine{Backend: n}
			e.own.due = now
			b.engines[n.Key] = e
			b.assign(e)
			b.recall(e, now)
			continue
		}
		e.written.note(&e.Backend, &n, now)
		if e.Name != n.Name {
			e.Backend = n
			b.assign(e)
		}
		e.Backend = n
	}
	for key := range b.engines {
		if !present[key] {
			delete(b.engines, key)
		}
	}
}

// recall takes what others have said of an engine before it was known here:
// they say it once.
func (b *Board) recall(e *engine, now time.Time) {
	for origin, reports := range b.said {
		for _, r := range reports {
			if r.Backend == e.Key {
				e.hear(origin, r, true, now)
			}
		}
	}
}

// SetNodes says which other nodes live and have been heard lately. Reports of
// the others do not count, and engines they probed are probed by somebody else.
func (b *Board) SetNodes(others []string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.changed(others) {
		return
	}
	for _, e := range b.engines {
		was := e.mine
		b.assign(e)
		if e.mine && !was {
			e.own.due = now
		}
	}
}

// SetPeer replaces what another node says of all engines; the board keeps the
// slice. It reports whether that calls for something to be done now: a probe, or another engine avoided.
func (b *Board) SetPeer(origin string, reports []Report, now time.Time) (urgent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said[origin] = reports
	said := make(map[uint32]Report, len(reports))
	for _, r := range reports {
		said[r.Backend] = r
	}
	for key, e := range b.engines {
		r, ok := said[key]
		if e.hear(origin, r, ok, now) {
			urgent = true
		}
		if ok && (r.Suspect || r.Failing) && e.mine && !e.own.failing() {
			urgent = e.hurry(now) || urgent
		}
	}
	return urgent
}

// hear takes a node's word on the engine, or that it has none; it reports
// whether that changes what the node says about failing.
func (e *engine) hear(origin string, r Report, ok bool, now time.Time) bool {
	at := -1
	for i := range e.peers {
		if e.peers[i].origin == origin {
			at = i
		}
	}
	switch {
	case !ok && at < 0:
		return false
	case !ok:
		was := e.peers[at].Failing
		e.peers[at] = e.peers[len(e.peers)-1]
		e.peers = e.peers[:len(e.peers)-1]
		return was
	case at < 0:
		e.peers = append(e.peers, peerReport{origin: origin})
		at = len(e.peers) - 1
	}
	p := &e.peers[at]
	was := p.Failing
	p.Report = r
	switch {
	case !r.Failing:
		p.failingAt = time.Time{}
	case p.failingAt.IsZero():
		p.failingAt = now
	}
	return was != r.Failing
}

// DropPeer forgets what a node that has gone has said.
func (b *Board) DropPeer(origin string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.said, origin)
	for _, e := range b.engines {
		e.hear(origin, Report{}, false, time.Time{})
	}
}

// Verdict is what one node makes of one engine, for people.
type Verdict struct {
	Failing   bool // by own evidence
	Avoid     bool // left alone because of probes or other nodes
	Reason    Reason
	Since     time.Time // of Failing or, while it is not, of its being well; zero unknown
	Probed    time.Time // last own probe that ended; zero none
	Reporters []string  // the nodes that probe it
	OK        int       // of them, say it is well
	Bad       int       // of them, say it fails
}

// Verdict returns what is known of an engine now.
func (b *Board) Verdict(key uint32, now time.Time) (Verdict, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil {
		return Verdict{}, false
	}
	c := b.count(e, now)
	v := Verdict{
		Failing: e.own.failing(), Reason: e.own.reason(), Since: e.own.since, Probed: e.own.probed, Reporters: e.reporters,
		OK: c.ok, Bad: c.failing,
	}
	if v.Avoid, _ = b.avoid(e, now); v.Avoid && v.Reason == NoReason {
		v.Reason = cmp.Or(c.reason, c.rumour)
	}
	return v, true
}
