package policy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/prefixtree"
)

// PeerLoad is the work one node has outstanding on one backend.
type PeerLoad struct {
	Backend       prefixtree.Backend
	PrefillTokens int64 // of requests without a first token
	Active        int64 // requests that have not ended
}

// Never is the staleness of what nodes do not tell each other at all.
const Never = time.Duration(math.MaxInt64)

// What one node may claim of one backend, so that a wrong figure does not keep all others from it for long: as many prefill
// tokens as its KV cache holds, and a number of requests that no engine runs at once.
const (
	claimTokens   = 4 << 20 // where the size of the cache is not known
	claimRequests = 4 << 10
)

// peerLoads keeps every origin's last report apart, so that reports replace each other per origin and are summed over
// them: one origin's news never overwrites another's, and a dead origin's share can be taken out again.
type peerLoads struct {
	mu       sync.Mutex
	byOrigin map[string]map[*slot]PeerLoad
	heard    atomic.Int64 // origins with a report, idle ones included
}

// SetPeerLoad replaces what the origin reported before by loads, its whole vector: backends it does not list are idle by its
// account, and an empty one says that all are. Of a backend listed twice the sum counts. What is reported of a backend outside the
// present view counts as soon as a view has it.
func (r *Router) SetPeerLoad(origin string, loads []PeerLoad) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.idle(origin)
	r.addPeerLoad(origin, loads)
}

// UpdatePeerLoad replaces what the origin reported before of the listed backends, by absolute values; its other work stands.
func (r *Router) UpdatePeerLoad(origin string, changed []PeerLoad) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	held := r.peers.byOrigin[origin]
	for _, l := range changed {
		takeOut(held, r.ledger.of(l.Backend))
	}
	r.addPeerLoad(origin, changed)
}

// DropPeer takes out what the origin reported: it has left or died.
func (r *Router) DropPeer(origin string) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.idle(origin)
	delete(r.peers.byOrigin, origin)
	r.peers.heard.Store(int64(len(r.peers.byOrigin)))
}

// addPeerLoad books loads on top of what the origin has; the lock of peers must be held.
func (r *Router) addPeerLoad(origin string, loads []PeerLoad) {
	p := &r.peers
	held := p.byOrigin[origin]
	if held == nil {
		if p.byOrigin == nil {
			p.byOrigin = map[string]map[*slot]PeerLoad{}
		}
		held = make(map[*slot]PeerLoad, len(loads))
		p.byOrigin[origin] = held
		p.heard.Store(int64(len(p.byOrigin)))
	}
	t := r.table.Load() // nil before the first view
	for _, l := range loads {
		s := r.ledger.of(l.Backend)
		most := int64(claimTokens)
		if t != nil {
			if b, ok := t.view.Backend(l.Backend); ok && b.KVTokens > 0 {
				most = int64(b.KVTokens)
			}
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

// idle takes out all of the origin's work, but keeps the origin; the lock must be held.
func (p *peerLoads) idle(origin string) {
	held := p.byOrigin[origin]
	for s := range held {
		takeOut(held, s)
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

// OwnLoads appends the own outstanding work to dst, by backend in view order, idle backends left out: what this node reports to
// its peers. Work on backends that have left the view is not listed.
func (r *Router) OwnLoads(dst []PeerLoad, now prefixtree.Time) []PeerLoad {
	for _, s := range r.table.Load().slots {
		if s.headWhole.Load() {
			s.settle(now, s.rateOr(r.rate.load()))
		}
		// The books may be between two of their changes; never report less than nothing.
		l := PeerLoad{Backend: s.id, PrefillTokens: max(s.charged.Load(), 0), Active: max(s.active.Load(), 0)}
		if l.PrefillTokens > 0 || l.Active > 0 {
			dst = append(dst, l)
		}
	}
	return dst
}
