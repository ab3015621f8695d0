package node

import (
	"grapevine/gossip"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// unplacedLoads keep what others have said last of their load on backends that this node
// does not know yet, as unplaced does with placements: who places requests on a new
// backend says so once, and again with all of its load only seconds later. An
// origin's next word on all of its load takes the place of what is kept of it. Bounded;
// the caller sees to it that one at a time uses it.
type unplacedLoads struct {
	byOrigin map[string]map[uint32]gossip.Load // by key; none is empty
	count    int
}

// maxUnplacedLoads is a few hundred backends that eight nodes route to already. 32
// bytes each, with what the map takes.
const maxUnplacedLoads = 4096

// keep replaces what an origin said of a backend. An idle one is as one that nobody
// spoke of.
func (u *unplacedLoads) keep(origin string, l gossip.Load) {
	held := u.byOrigin[origin]
	_, known := held[l.Backend]
	switch idle := l.PrefillTokens == 0 && l.Active == 0; {
	case idle && known:
		u.remove(origin, l.Backend)
	case idle, !known && u.count >= maxUnplacedLoads:
	case known:
		held[l.Backend] = l
	default:
		if held == nil {
			held = make(map[uint32]gossip.Load)
			if u.byOrigin == nil {
				u.byOrigin = make(map[string]map[uint32]gossip.Load)
			}
			u.byOrigin[origin] = held
		}
		held[l.Backend] = l
		u.count++
	}
}

func (u *unplacedLoads) remove(origin string, key uint32) {
	held := u.byOrigin[origin]
	delete(held, key)
	u.count--
	if len(held) == 0 {
		delete(u.byOrigin, origin)
	}
}

// forget drops what an origin said.
func (u *unplacedLoads) forget(origin string) {
	u.count -= len(u.byOrigin[origin])
	delete(u.byOrigin, origin)
}

// take returns, by origin, what is kept of backends that have a place by now, and keeps
// it no longer.
func (u *unplacedLoads) take(names prefixtree.Names) map[string][]policy.PeerLoad {
	placed := make(map[string][]policy.PeerLoad)
	for origin, held := range u.byOrigin {
		for key, l := range held {
			if b, ok := names.Backend(key); ok {
				placed[origin] = append(placed[origin], peerLoad(b, l))
				u.remove(origin, key)
			}
		}
	}
	return placed
}

func peerLoad(b prefixtree.Backend, l gossip.Load) policy.PeerLoad {
	return policy.PeerLoad{Backend: b, PrefillTokens: int64(l.PrefillTokens), Active: int64(l.Active)}
}
