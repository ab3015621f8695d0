package fleetsim

import (
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// work is what a node, or several, have outstanding on one backend.
type work struct {
	tokens, active int64
}

// loadChange is a change of one node's work on one backend.
type loadChange struct {
	at      time.Duration
	origin  int
	backend prefixtree.Backend
	work
}

// loadBoard carries the outstanding work of every node to every other one, each change after a fixed delay. All nodes
// see the same changes at the same time but for their own, and a router only asks for the sum over its peers. So there is
// one delayed sum, and what a node is told is that sum less its own delayed part: the same as one report per origin.
type loadBoard struct {
	delay    time.Duration
	backends int
	routers  []*policy.Router

	changes []loadChange
	head    int    // of changes: all before have arrived
	sum     []work // by backend: what has arrived, of all nodes
	own     []work // by node, backend: what has arrived of it
	said    []work // by node, backend: what it has said last
	version []uint32
	seen    []uint32 // by node, backend: the version it has been told
	vector  []policy.PeerLoad
}

// others is the name under which a router is told the sum over all its peers.
const others = "others"

func newLoadBoard(delay time.Duration, nodes, backends int) *loadBoard {
	return &loadBoard{
		delay: delay, backends: backends, routers: make([]*policy.Router, nodes),
		sum: make([]work, backends), version: make([]uint32, backends),
		own: make([]work, nodes*backends), said: make([]work, nodes*backends), seen: make([]uint32, nodes*backends),
	}
}

// join takes up a node's router. It hears at once that nobody has anything to do, as on every new connection.
func (l *loadBoard) join(node int, r *policy.Router) {
	l.routers[node] = r
	r.SetPeerLoad(others, nil)
}

// tell announces what the node has outstanding on a backend now.
func (l *loadBoard) tell(node int, b prefixtree.Backend, now time.Duration) {
	var is work
	is.tokens, is.active = l.routers[node].Load(b)
	was := &l.said[node*l.backends+int(b)]
	if is == *was {
		return
	}
	l.changes = append(l.changes, loadChange{now, node, b, work{is.tokens - was.tokens, is.active - was.active}})
	*was = is
}

// deliver tells the node's router the work of its peers as far as it has arrived by now.
func (l *loadBoard) deliver(node int, now time.Duration) {
	l.arrive(now)
	l.vector = l.vector[:0]
	row := node * l.backends
	for b, v := range l.version {
		if l.seen[row+b] == v {
			continue
		}
		l.seen[row+b] = v
		sum, own := l.sum[b], l.own[row+b]
		l.vector = append(l.vector, policy.PeerLoad{
			Backend: prefixtree.Backend(b), PrefillTokens: sum.tokens - own.tokens, Active: sum.active - own.active,
		})
	}
	if len(l.vector) > 0 {
		l.routers[node].UpdatePeerLoad(others, l.vector)
	}
}

// arrive adds up the changes that are old enough.
func (l *loadBoard) arrive(now time.Duration) {
	for ; l.head < len(l.changes) && l.changes[l.head].at+l.delay <= now; l.head++ {
		c := &l.changes[l.head]
		for _, w := range []*work{&l.sum[c.backend], &l.own[c.origin*l.backends+int(c.backend)]} {
			w.tokens += c.tokens
			w.active += c.active
		}
		l.version[c.backend]++
	}
	if l.head > 1024 && 2*l.head > len(l.changes) {
		l.changes = l.changes[:copy(l.changes, l.changes[l.head:])]
		l.head = 0
	}
}
