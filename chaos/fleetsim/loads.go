package fleetsim

import (
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

type work struct {
	tokens, active int64
}

func (w work) plus(o work) work { return work{w.tokens + o.tokens, w.active + o.active} }

func (w work) minus(o work) work { return work{w.tokens - o.tokens, w.active - o.active} }

type loadExchange interface {
	// join registers a node's router, which at once hears that its peers are idle, as on a new
	// connection.
	join(node int, r *policy.Router)
	// tell announces the node's present work on a backend.
	tell(node int, b prefixtree.Backend, now time.Duration)
	// deliver gives the node's router its peers' work that has arrived by now.
	deliver(node int, now time.Duration)
}

const others = "others"

type loadChange struct {
	at      time.Duration
	origin  int
	backend prefixtree.Backend
	is      work
}

type loadQueue struct {
	routers  []*policy.Router
	meter    *meter
	backends int
	said     []work
	changes  []loadChange
	head     int
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

// next returns the next change made by the given time, or nil. It is valid until the next call.
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

func peerLoad(b int, w work) policy.PeerLoad {
	return policy.PeerLoad{Backend: prefixtree.Backend(b), PrefillTokens: w.tokens, Active: w.active}
}

// loadBoard is a loadExchange without losses. All nodes see the same changes at the same time, so
// it keeps one delayed sum; a node's peers are that sum less the node's own delayed part. This
// equals one report per origin, as a test checks against loadMatrix.
type loadBoard struct {
	loadQueue
	delay   time.Duration
	sum     []work
	own     []work
	version []uint32
	seen    []uint32
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
