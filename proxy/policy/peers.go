package policy

import (
	"sync"

	"grapevine/prefixtree"
)

// PeerLoad is the work one other node has outstanding on one backend.
type PeerLoad struct {
	Backend       prefixtree.Backend
	PrefillTokens int64 // of requests without a first token
	Active        int64 // requests that have not ended
}

// peerLoads keeps every origin's last report apart, so that reports replace each other per origin and are summed over
// them: one origin's news never overwrites another's, and a dead origin's share can be taken out again.
type peerLoads struct {
	mu       sync.Mutex
	byOrigin map[string]map[*slot]PeerLoad
}

// SetPeerLoad replaces what the origin reported before by loads, its whole vector (backends it does not list are idle by its
// account). Backends outside the present view are ignored.
func (r *Router) SetPeerLoad(origin string, loads []PeerLoad) {
	t := r.table.Load()
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.remove(origin)
	if len(loads) == 0 {
		return
	}
	held := make(map[*slot]PeerLoad, len(loads))
	for _, l := range loads {
		s := t.slot(l.Backend)
		if s == nil {
			continue
		}
		l.PrefillTokens, l.Active = max(l.PrefillTokens, 0), max(l.Active, 0)
		if was, twice := held[s]; twice {
			l.PrefillTokens += was.PrefillTokens
			l.Active += was.Active
		}
		held[s] = l
	}
	for s, l := range held {
		s.peerTokens.Add(l.PrefillTokens)
		s.peerActive.Add(l.Active)
	}
	if r.peers.byOrigin == nil {
		r.peers.byOrigin = map[string]map[*slot]PeerLoad{}
	}
	r.peers.byOrigin[origin] = held
}

// DropPeer takes out what the origin reported: it has left or died.
func (r *Router) DropPeer(origin string) { r.SetPeerLoad(origin, nil) }

func (p *peerLoads) remove(origin string) {
	for s, l := range p.byOrigin[origin] {
		s.peerTokens.Add(-l.PrefillTokens)
		s.peerActive.Add(-l.Active)
	}
	delete(p.byOrigin, origin)
}
