package policy

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
	mu       sync.Mutex
	byOrigin map[string]map[*slot]peerLoad
	heard    atomic.Int64 // origins with a report, including idle ones
	full     uint64       // number of the latest full report
}

type peerLoad struct {
	tokens, active int64
	full           uint64 // the latest full report that lists it
}

// SetPeerLoad replaces the origin's report; unlisted backends are idle. Of duplicates the last counts.
func (r *Router) SetPeerLoad(origin string, loads []PeerLoad, now prefixtree.Time) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.full++
	held := r.peers.of(origin)
	r.report(held, loads, now)
	for s, l := range held {
		if l.full != r.peers.full {
			r.peers.replace(held, s, peerLoad{}, now)
		}
	}
}

// UpdatePeerLoad replaces the origin's report for the listed backends only.
func (r *Router) UpdatePeerLoad(origin string, changed []PeerLoad, now prefixtree.Time) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.report(r.peers.of(origin), changed, now)
}

// DropPeer takes out what the origin reported.
func (r *Router) DropPeer(origin string) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	held := r.peers.byOrigin[origin]
	delete(r.peers.byOrigin, origin)
	r.peers.heard.Store(int64(len(r.peers.byOrigin)))
	for s, l := range held {
		r.peers.count(s, l, peerLoad{})
	}
}

// of returns the origin's report. Needs mu.
func (p *peerLoads) of(origin string) map[*slot]peerLoad {
	held := p.byOrigin[origin]
	if held == nil {
		held = map[*slot]peerLoad{}
		p.byOrigin[origin] = held
		p.heard.Store(int64(len(p.byOrigin)))
	}
	return held
}

// report needs peers.mu.
func (r *Router) report(held map[*slot]peerLoad, loads []PeerLoad, now prefixtree.Time) {
	view := r.View()
	for _, l := range loads {
		most := int64(claimTokens)
		if b, ok := view.Backend(l.Backend); ok && b.KVTokens > 0 {
			most = int64(b.KVTokens)
		}
		is := peerLoad{min(max(l.PrefillTokens, 0), most), min(max(l.Active, 0), claimRequests), r.peers.full}
		r.peers.replace(held, r.ledger.of(l.Backend), is, now)
	}
}

// replace takes an origin's load on a backend. Fewer tokens mean that a request of its has its first
// token, and the first tokens on an idle backend that its prefill begins. Needs mu.
func (p *peerLoads) replace(held map[*slot]peerLoad, s *slot, is peerLoad, now prefixtree.Time) {
	was := held[s]
	if is.tokens == 0 && is.active == 0 {
		delete(held, s)
	} else {
		held[s] = is
	}
	idle := s.peerTokens.Load() <= 0 && s.pending.Load() == 0
	p.count(s, was, is)
	if is.tokens > was.tokens {
		// After count: a Pick between the two counts them twice rather than not at all.
		s.overtaken(is.tokens-was.tokens, now)
	}
	if is.tokens < was.tokens || is.tokens > 0 && idle {
		s.mu.Lock()
		s.turn(now)
		s.mu.Unlock()
	}
}

// count replaces an origin's load, which byOrigin has no more, in the sums of the backend. Needs mu.
func (p *peerLoads) count(s *slot, was, is peerLoad) {
	s.peerTokens.Add(is.tokens - was.tokens)
	s.peerActive.Add(is.active - was.active)
	most := s.peerMost.Load()
	if is.tokens < was.tokens && was.tokens == most {
		most = 0
		for _, held := range p.byOrigin {
			most = max(most, held[s].tokens)
		}
	}
	s.peerMost.Store(max(most, is.tokens))
}

// PeerLoad returns what other nodes report as outstanding.
func (r *Router) PeerLoad(b prefixtree.Backend) (prefillTokens, active int64) {
	s := r.known(b)
	return max(s.peerTokens.Load(), 0), max(s.peerActive.Load(), 0)
}

// OwnLoads appends this node's outstanding work, without idle backends.
func (r *Router) OwnLoads(dst []PeerLoad, now prefixtree.Time) []PeerLoad {
	for _, s := range r.table.Load().slots {
		if s.headNonStreaming.Load() {
			s.settle(now, s.rateOr(r.rate.load()))
		}
		// Counters may be between two updates.
		l := PeerLoad{Backend: s.id, PrefillTokens: max(s.charged.Load(), 0), Active: max(s.active.Load(), 0)}
		if l.PrefillTokens > 0 || l.Active > 0 {
			dst = append(dst, l)
		}
	}
	return dst
}
