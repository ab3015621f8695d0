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

func (w work) plus(o work) work { return work{w.tokens + o.tokens, w.active + o.active} }

func (w work) minus(o work) work { return work{w.tokens - o.tokens, w.active - o.active} }

// loadExchange carries the outstanding work of every node to every other one.
type loadExchange interface {
	// join takes up a node's router. It hears at once that nobody has anything to do, as on every new connection.
	join(node int, r *policy.Router)
	// tell announces what the node has outstanding on a backend now.
	tell(node int, b prefixtree.Backend, now time.Duration)
	// deliver tells the node's router the work of its peers as far as it has arrived by now.
	deliver(node int, now time.Duration)
}

// others is the name under which a router is told the sum over all its peers.
const others = "others"

// loadChange is what one node's work on one backend has become.
type loadChange struct {
	at      time.Duration
	origin  int
	backend prefixtree.Backend
	is      work
}

// loadQueue is the changes that have not arrived yet, in the order in which they were made.
type loadQueue struct {
	routers  []*policy.Router
	meter    *meter // nil: not counted
	backends int
	said     []work // by node, backend: what it has said last
	changes  []loadChange
	head     int // of changes: all before have arrived
}

func newLoadQueue(nodes, backends int, m *meter) loadQueue {
	return loadQueue{meter: m, routers: make([]*policy.Router, nodes), backends: backends, said: make([]work, nodes*backends)}
}

func (q *loadQueue) join(node int, r *policy.Router) {
	q.routers[node] = r
	r.SetPeerLoad(others, nil)
}

func (q *loadQueue) tell(node int, b prefixtree.Backend, now time.Duration) {
	var is work
	is.tokens, is.active = q.routers[node].Load(b)
	if was := &q.said[node*q.backends+int(b)]; is != *was {
		q.changes = append(q.changes, loadChange{now, node, b, is})
		q.meter.load(node, now, b, is)
		*was = is
	}
}

// next returns the next change that was made by the given time, nil if there is none. It is valid until the next call.
func (q *loadQueue) next(made time.Duration) *loadChange {
	if q.head > 1024 && 2*q.head > len(q.changes) {
		q.changes = q.changes[:copy(q.changes, q.changes[q.head:])]
		q.head = 0
	}
	if q.head == len(q.changes) || q.changes[q.head].at > made {
		return nil
	}
	q.head++
	return &q.changes[q.head-1]
}

// peerLoad is what a router is told of its peers' work on a backend.
func peerLoad(b int, w work) policy.PeerLoad {
	return policy.PeerLoad{Backend: prefixtree.Backend(b), PrefillTokens: w.tokens, Active: w.active}
}

// loadBoard is a loadExchange on which nothing is lost. All nodes see the same changes at the same time but for their own, and
// a router only asks for the sum over its peers. So there is one delayed sum, and what a node is told is that sum less its
// own delayed part: the same as one report per origin, as a test holds against loadMatrix.
type loadBoard struct {
	loadQueue
	delay   time.Duration
	sum     []work // by backend: what has arrived, of all nodes
	own     []work // by node, backend: what has arrived of it
	version []uint32
	seen    []uint32 // by node, backend: the version it has been told
	vector  []policy.PeerLoad
}

func newLoadBoard(l link, backends int, m *meter) *loadBoard {
	return &loadBoard{
		loadQueue: newLoadQueue(l.nodes, backends, m), delay: l.delay, sum: make([]work, backends), version: make([]uint32, backends),
		own: make([]work, l.nodes*backends), seen: make([]uint32, l.nodes*backends),
	}
}

func (l *loadBoard) deliver(node int, now time.Duration) {
	for c := l.next(now - l.delay); c != nil; c = l.next(now - l.delay) {
		own := &l.own[c.origin*l.backends+int(c.backend)]
		l.sum[c.backend] = l.sum[c.backend].plus(c.is).minus(*own)
		*own = c.is
		l.version[c.backend]++
	}
	l.vector = l.vector[:0]
	row := node * l.backends
	for b, v := range l.version {
		if l.seen[row+b] != v {
			l.seen[row+b] = v
			l.vector = append(l.vector, peerLoad(b, l.sum[b].minus(l.own[row+b])))
		}
	}
	if len(l.vector) > 0 {
		l.routers[node].UpdatePeerLoad(others, l.vector)
	}
}
