// Package health judges engines from the probes and requests of several nodes. Board is pure: time
// is a parameter. Checker probes on the wall clock, avoids engines and proposes commands.
package health

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

type Reason uint8

// A 4xx answer is no failure: it proves that the engine is alive.
const (
	NoReason Reason = iota
	Refused         // nothing listens
	Connect         // connecting failed, but was not refused
	Timeout         // connected, and no answer in time
	Reset           // connection lost before the answer
	Status5xx
	TLS // no TLS, or a certificate that is not trusted
	reasons
)

var reasonNames = [reasons]string{"none", "refused", "connect", "timeout", "reset", "5xx", "tls"}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "other" // sent by a newer node
}

const (
	// Reporters is the number of nodes that probe an engine: two of three outvote a broken network.
	Reporters = 3
	// failsToBad: one failed probe may be an accident.
	failsToBad = 2
	// timeoutsToBad is for probes that connect and get no answer, as in a long prefill: ten seconds
	// with a timeout of 1.5 s.
	timeoutsToBad = 6
	// goodsToOK: a starting engine often answers once and crashes again.
	goodsToOK = 3
	// suspicionLasts is how long a failed request makes reporters probe at once.
	suspicionLasts = 2 * time.Second
	// retryAfter is the least time between probes of an engine that may be failing.
	retryAfter = 150 * time.Millisecond
	// confirmAfter is the pause between the good probes that end a failure.
	confirmAfter = 250 * time.Millisecond
	// For quickFor a failing engine is probed four times as often; quickShare bounds all such
	// probes to 250/s.
	quickFor   = 30 * time.Second
	quickShare = 4 * time.Millisecond
	// ejectShare: peers' failed requests make a node avoid at most one engine in ejectShare, but at
	// least one.
	ejectShare = 5
	// grace is how long one peer's report suffices: all reporters can probe meanwhile.
	grace = 2500 * time.Millisecond
)

// Prefix begins the reason of every state change that health makes.
const Prefix = "health: "

type Backend struct {
	Key        uint32 // of its name; identifies the engine between nodes
	Name       string
	Generation uint32
	Version    uint64 // of the engine's agreed record
	Down       bool
	Ours       bool // health took it down, not an operator
	Reason     string
}

type Report struct {
	Backend uint32
	OK      bool // the node probes the engine, and it answers
	Failing bool
	Passive bool // Failing because of requests alone; probes may succeed
	Suspect bool // a request has just failed: probe now
	Reason  Reason
	Since   uint32 // Unix seconds; when Failing or OK began
	Started uint32 // Unix seconds; when the engine's process started; 0 unknown
}

type Config struct {
	Self     string
	Interval time.Duration // between two probes of a healthy engine
	Timeout  time.Duration
	// Jitter returns numbers from 0 to 1 that spread probes; nil means 0.5.
	Jitter func() float64
}

// Board is one node's view of all engines. Safe for concurrent use.
type Board struct {
	cfg Config

	mu      sync.Mutex
	engines map[uint32]*watched
	failing int // failing engines at the last Due
	nodes   []string
	said    map[string][]Report // latest by node; also for unknown engines
	writing pacer
}

type watched struct {
	Backend
	mine      bool
	reporters []string
	own       own
	peers     []peerReport
	restart   restart
	written   written
}

type peerReport struct {
	origin string
	Report
	failingAt time.Time // when Failing arrived; zero while not failing
}

func New(cfg Config) *Board {
	if cfg.Jitter == nil {
		cfg.Jitter = func() float64 { return 0.5 }
	}
	return &Board{cfg: cfg, engines: make(map[uint32]*watched), nodes: []string{cfg.Self}, said: make(map[string][]Report)}
}

func (b *Board) SetBackends(list []Backend, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	present := make(map[uint32]bool, len(list))
	for _, n := range list {
		present[n.Key] = true
		e := b.engines[n.Key]
		if e == nil {
			e = &watched{Backend: n}
			e.own.due = now
			b.engines[n.Key] = e
			b.assign(e)
			b.recall(e, now)
			continue
		}
		e.written.note(&e.Backend, &n, now)
		e.Backend = n
	}
	maps.DeleteFunc(b.engines, func(key uint32, _ *watched) bool { return !present[key] })
}

// recall applies earlier reports to a new engine; peers do not repeat them.
func (b *Board) recall(e *watched, now time.Time) {
	for origin, reports := range b.said {
		for _, r := range reports {
			if r.Backend == e.Key {
				e.hear(origin, r, true, now)
			}
		}
	}
}

// SetNodes sets the live peers; only they count as reporters.
func (b *Board) SetNodes(others []string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	nodes := append(slices.Clone(others), b.cfg.Self)
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); slices.Equal(nodes, b.nodes) {
		return
	}
	b.nodes = nodes
	for _, e := range b.engines {
		was := e.mine
		b.assign(e)
		if e.mine && !was {
			e.own.due = now
		}
	}
}

// SetPeer replaces a peer's reports and keeps the slice. urgent: probes are due, or other engines
// are avoided.
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

// hear stores a peer's report, or removes it if ok is false, and returns whether Failing changed.
func (e *watched) hear(origin string, r Report, ok bool, now time.Time) bool {
	at := slices.IndexFunc(e.peers, func(p peerReport) bool { return p.origin == origin })
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

func (b *Board) DropPeer(origin string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.said, origin)
	for _, e := range b.engines {
		e.hear(origin, Report{}, false, time.Time{})
	}
}

// Verdict is one node's view of one engine, for display.
type Verdict struct {
	Failing   bool
	Avoid     bool // because of probes or reports of peers
	Reason    Reason
	Since     time.Time // start of the failing or healthy state; zero unknown
	Probed    time.Time // end of the last own probe; zero none
	Reporters []string
	OK        int // reporters that find it healthy
	Bad       int // reporters that find it failing
}

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
