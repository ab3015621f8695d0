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
	byOrigin map[string]map[*slot]PeerLoad
	heard    atomic.Int64 // origins with a report, including idle ones
}

// SetPeerLoad replaces the origin's report; unlisted backends are idle, duplicates add up.
func (r *Router) SetPeerLoad(origin string, loads []PeerLoad) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	held := r.peers.of(origin)
	for s := range held {
		takeOut(held, s)
	}
	r.addPeerLoad(held, loads)
}

// UpdatePeerLoad replaces the origin's report for the listed backends only.
func (r *Router) UpdatePeerLoad(origin string, changed []PeerLoad) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	held := r.peers.of(origin)
	for _, l := range changed {
		takeOut(held, r.ledger.of(l.Backend))
	}
	r.addPeerLoad(held, changed)
}

// DropPeer takes out what the origin reported.
func (r *Router) DropPeer(origin string) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	held := r.peers.byOrigin[origin]
	for s := range held {
		takeOut(held, s)
	}
	delete(r.peers.byOrigin, origin)
	r.peers.heard.Store(int64(len(r.peers.byOrigin)))
}

// of returns the origin's report. Needs mu.
func (p *peerLoads) of(origin string) map[*slot]PeerLoad {
	held := p.byOrigin[origin]
	if held == nil {
		held = map[*slot]PeerLoad{}
		p.byOrigin[origin] = held
		p.heard.Store(int64(len(p.byOrigin)))
	}
	return held
}

// addPeerLoad needs peers.mu.
func (r *Router) addPeerLoad(held map[*slot]PeerLoad, loads []PeerLoad) {
	view := r.View()
	for _, l := range loads {
		s := r.ledger.of(l.Backend)
		most := int64(claimTokens)
		if b, ok := view.Backend(l.Backend); ok && b.KVTokens > 0 {
			most = int64(b.KVTokens)
		}
		was := held[s]
		l.PrefillTokens = min(max(l.PrefillTokens, 0), most-was.PrefillTokens)
		l.Active = min(max(l.Active, 0), claimRequests-was.Active)
		if l.PrefillTokens == 0 && l.Active == 0 {
			continue
		}
		s.peerTokens.Add(l.PrefillTokens)
		s.peerActive.Add(l.Active)
		l.PrefillTokens += was.PrefillTokens
		l.Active += was.Active
		held[s] = l
	}
}

func takeOut(held map[*slot]PeerLoad, s *slot) {
	l, ok := held[s]
	if !ok {
		return
	}
	s.peerTokens.Add(-l.PrefillTokens)
	s.peerActive.Add(-l.Active)
	delete(held, s)
}

// PeerLoad returns what other nodes report as outstanding.
func (r *Router) PeerLoad(b prefixtree.Backend) (prefillTokens, active int64) {
	if s := r.table.Load().slot(b); s != nil {
		return max(s.peerTokens.Load(), 0), max(s.peerActive.Load(), 0)
	}
	return 0, 0
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
