package books

import (
	"sync"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

// PeerLoad is one node's outstanding work on one backend.
type PeerLoad struct {
	Backend       prefixtree.Backend
	PrefillTokens int64 // of requests before their first token
	Active        int64
}

// Bounds of one node's report for one backend, lest a wrong one divert all requests: the KV
// capacity, and more requests than any engine runs.
const (
	claimTokens   = 4 << 20 // if the capacity is unknown
	claimRequests = 4 << 10
)

type peerLoads struct {
	heard    atomic.Int64 // origins with a report, including idle ones
	mu       sync.Mutex
	byOrigin map[string]map[*Engine]peerLoad
	full     uint64 // number of the latest full report
}

type peerLoad struct {
	tokens, active int64
	full           uint64 // the latest full report that lists it
}

// Capacity returns how many tokens a backend's KV cache holds; 0: unknown. It must not call the books.
type Capacity func(prefixtree.Backend) int

// Peers returns how many other routers' reports the books hold, those of idle ones, too.
func (f *Fleet) Peers() int { return int(f.peers.heard.Load()) }

// SetPeerLoad replaces the origin's report; unlisted backends are idle. Of duplicates the last counts.
func (f *Fleet) SetPeerLoad(origin string, loads []PeerLoad, capacity Capacity, now prefixtree.Time) {
	f.peers.mu.Lock()
	defer f.peers.mu.Unlock()
	f.peers.full++
	held := f.peers.of(origin)
	f.hear(held, loads, capacity, now)
	for e, l := range held {
		if l.full != f.peers.full {
			f.peers.replace(held, e, peerLoad{}, now)
		}
	}
}

// UpdatePeerLoad replaces the origin's report for the listed backends only.
func (f *Fleet) UpdatePeerLoad(origin string, changed []PeerLoad, capacity Capacity, now prefixtree.Time) {
	f.peers.mu.Lock()
	defer f.peers.mu.Unlock()
	f.hear(f.peers.of(origin), changed, capacity, now)
}

// DropPeer takes out what the origin reported.
func (f *Fleet) DropPeer(origin string) {
	f.peers.mu.Lock()
	defer f.peers.mu.Unlock()
	held := f.peers.byOrigin[origin]
	delete(f.peers.byOrigin, origin)
	f.peers.heard.Store(int64(len(f.peers.byOrigin)))
	for e, l := range held {
		f.peers.count(e, l, peerLoad{})
	}
}

// of returns the origin's report. Needs mu.
func (p *peerLoads) of(origin string) map[*Engine]peerLoad {
	held := p.byOrigin[origin]
	if held == nil {
		held = map[*Engine]peerLoad{}
		p.byOrigin[origin] = held
		p.heard.Store(int64(len(p.byOrigin)))
	}
	return held
}

// hear needs peers.mu.
func (f *Fleet) hear(held map[*Engine]peerLoad, loads []PeerLoad, capacity Capacity, now prefixtree.Time) {
	for _, l := range loads {
		most := int64(claimTokens)
		if kv := capacity(l.Backend); kv > 0 {
			most = int64(kv)
		}
		is := peerLoad{min(max(l.PrefillTokens, 0), most), min(max(l.Active, 0), claimRequests), f.peers.full}
		f.peers.replace(held, f.of(l.Backend), is, now)
	}
}

// replace takes an origin's load on a backend. Fewer tokens mean that a request of its has its first
// token, and the first tokens on an idle backend that its prefill begins. Needs mu.
func (p *peerLoads) replace(held map[*Engine]peerLoad, e *Engine, is peerLoad, now prefixtree.Time) {
	was := held[e]
	if is.tokens == 0 && is.active == 0 {
		delete(held, e)
	} else {
		held[e] = is
	}
	idle := e.peerTokens.Load() <= 0 && e.pending.Load() == 0
	p.count(e, was, is)
	if is.tokens > was.tokens {
		// After count: a Pick between the two counts them twice rather than not at all.
		e.overtaken(is.tokens-was.tokens, now)
	}
	if is.tokens < was.tokens || is.tokens > 0 && idle {
		e.mu.Lock()
		e.turn(now)
		e.mu.Unlock()
	}
}

// count replaces an origin's load, which byOrigin has no more, in the sums of the backend. Needs mu.
func (p *peerLoads) count(e *Engine, was, is peerLoad) {
	e.peerTokens.Add(is.tokens - was.tokens)
	e.peerActive.Add(is.active - was.active)
	most := e.peerMost.Load()
	if is.tokens < was.tokens && was.tokens == most {
		most = 0
		for _, held := range p.byOrigin {
			most = max(most, held[e].tokens)
		}
	}
	e.peerMost.Store(max(most, is.tokens))
}

// OwnLoads appends this node's outstanding work on some engines, without idle ones.
func (f *Fleet) OwnLoads(dst []PeerLoad, engines []*Engine, now prefixtree.Time) []PeerLoad {
	for _, e := range engines {
		if e.headNonStreaming.Load() {
			e.settle(now, e.RateOr(f.rate.load()))
		}
		// Counters may be between two updates.
		l := PeerLoad{Backend: e.id, PrefillTokens: max(e.charged.Load(), 0), Active: max(e.active.Load(), 0)}
		if l.PrefillTokens > 0 || l.Active > 0 {
			dst = append(dst, l)
		}
	}
	return dst
}
