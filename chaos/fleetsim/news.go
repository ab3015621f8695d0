package fleetsim

import (
	"fmt"
	"slices"
	"time"

	"grapevine/prefixtree"
)

// news is one node's tree changes at one moment: the bytes [from, to) of the log, as on the wire.
type news struct {
	at       time.Duration
	origin   int
	from, to int
}

// factLog carries the tree changes of every node to all others. It is one log in the order of
// events with two cursors per node, because the other half of a partition may lag. A node reads
// what has arrived just before it uses its tree, which equals delivery at each message's time and
// is much cheaper, because the tree stays in the processor's cache.
type factLog struct {
	link
	trees  []*prefixtree.Tree
	near   []int // by node: number of the next item from its own half
	far    []int
	outbox *prefixtree.Outbox
	meter  *meter
	ages   []float64 // ms of each item until all nodes that it reaches have it

	items []news
	first int // number of items[0]
	bytes []byte
	base  int
	limit int
	told  []prefixtree.Fact
}

const logBytes = 1 << 20

// wireNames uses a backend's id as its key on the wire, because the simulated nodes agree on ids.
type wireNames struct{ backends int }

func (n wireNames) Key(b prefixtree.Backend) (uint32, bool) { return uint32(b), int(b) < n.backends }

func (n wireNames) Backend(key uint32) (prefixtree.Backend, bool) {
	return prefixtree.Backend(key), key < uint32(n.backends)
}

func newFactLog(l link, m *meter) *factLog {
	return &factLog{
		link: l, meter: m, trees: make([]*prefixtree.Tree, l.nodes), near: make([]int, l.nodes), far: make([]int, l.nodes),
		outbox: prefixtree.NewOutbox(0), limit: logBytes,
	}
}

var names = wireNames{MaxBackends}

func (l *factLog) tell(origin int, now time.Duration, facts []prefixtree.Fact) {
	if len(facts) == 0 {
		return
	}
	l.meter.news(origin, now, facts)
	l.outbox.Add(facts)
	from := len(l.bytes)
	for {
		var n int
		start := len(l.bytes)
		if l.bytes, n = l.outbox.Drain(l.bytes, prefixtree.MaxPayload, names); n == 0 {
			break
		}
		l.items = append(l.items, news{now, origin, l.base + start, l.base + len(l.bytes)})
	}
	age := l.delay
	if !l.none() {
		age = max(age, l.repaired(now)-now)
	}
	l.ages = append(l.ages, float64(age)/float64(time.Millisecond))
	if len(l.bytes) > l.limit && from < len(l.bytes) {
		l.cut(now)
	}
}

func (l *factLog) deliver(node int, now time.Duration) {
	l.advance(node, now, l.near, false)
	if !l.none() {
		l.advance(node, now, l.far, true)
	}
}

func (l *factLog) advance(node int, now time.Duration, cursors []int, far bool) {
	// Items and bytes may grow during the loop, by facts that this node corrects; it skips its own.
	for n := cursors[node]; n < l.first+len(l.items); n = cursors[node] {
		it := l.items[n-l.first]
		arrival := it.at + l.delay
		if far {
			arrival = l.repaired(it.at)
		}
		if arrival > now {
			return
		}
		cursors[node]++
		if it.origin == node || l.link.far(node, it.origin) != far || l.lost(it.origin, node, it.at) {
			continue
		}
		var err error
		_, l.told, err = l.trees[node].ApplyDeltaNews(l.bytes[it.from-l.base:it.to-l.base], names, 0, clock(arrival), l.told[:0])
		if err != nil {
			panic(fmt.Sprintf("fleetsim: a tree refuses what another has encoded: %v", err))
		}
		if len(l.told) > 0 {
			l.tell(node, now, slices.Clone(l.told))
		}
	}
}

func (l *factLog) cut(now time.Duration) {
	l.limit = int(^uint(0) >> 1)
	for node := range l.near {
		l.deliver(node, now)
	}
	least := min(slices.Min(l.near), l.first+len(l.items))
	if !l.none() {
		least = min(least, slices.Min(l.far))
	}
	l.items = slices.Delete(l.items, 0, least-l.first)
	l.first = least
	gone := len(l.bytes)
	if len(l.items) > 0 {
		gone = l.items[0].from - l.base
	}
	l.bytes = slices.Delete(l.bytes, 0, gone)
	l.base += gone
	l.limit = max(logBytes, 2*len(l.bytes))
}
