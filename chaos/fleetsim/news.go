package fleetsim

import (
	"slices"
	"time"

	"grapevine/prefixtree"
)

// news is what one node did to its tree at one moment: the facts [from, to) of the log.
type news struct {
	at       time.Duration
	origin   int
	from, to int // numbered from the start of the run
}

// factLog carries the facts of every node to every other one, each after a fixed delay. It is one log for all, in
// the order of events, with a cursor per node: since a tree only changes a decision when it is asked, a node takes what
// has arrived by then just before it uses its tree. That is exactly what delivering each fact at its time would do, at a
// fraction of the cost, as the tree then stays in the processor's cache.
type factLog struct {
	delay time.Duration
	trees []*prefixtree.Tree // by node
	next  []int              // by node: the number of the next item to look at

	items []news
	first int // number of items[0]
	facts []prefixtree.Fact
	base  int // number of facts[0]
	limit int // of len(facts), at which what everybody has is forgotten
}

// logFacts is the least length of a log before it is cut: a megabyte or two.
const logFacts = 1 << 16

func newFactLog(delay time.Duration, nodes int) *factLog {
	return &factLog{delay: delay, trees: make([]*prefixtree.Tree, nodes), next: make([]int, nodes), limit: logFacts}
}

// tell appends what fill appends to the log as the news of a node.
func (l *factLog) tell(origin int, now time.Duration, fill func([]prefixtree.Fact) []prefixtree.Fact) {
	from := len(l.facts)
	l.facts = fill(l.facts)
	if len(l.facts) == from {
		return
	}
	l.items = append(l.items, news{now, origin, l.base + from, l.base + len(l.facts)})
	if len(l.facts) > l.limit {
		l.cut(now)
	}
}

// deliver gives the node what has arrived by now.
func (l *factLog) deliver(node int, now time.Duration) {
	n := l.next[node] - l.first
	for ; n < len(l.items) && l.items[n].at+l.delay <= now; n++ {
		it := &l.items[n]
		if it.origin == node {
			continue
		}
		for _, f := range l.facts[it.from-l.base : it.to-l.base] {
			l.trees[node].Apply(f)
		}
	}
	l.next[node] = l.first + n
}

// cut gives every node what has arrived, though some have not asked for it yet, and forgets what nobody waits for.
func (l *factLog) cut(now time.Duration) {
	least := l.first + len(l.items)
	for node := range l.next {
		l.deliver(node, now)
		least = min(least, l.next[node])
	}
	l.items = slices.Delete(l.items, 0, least-l.first)
	l.first = least
	gone := len(l.facts)
	if len(l.items) > 0 {
		gone = l.items[0].from - l.base
	}
	l.facts = slices.Delete(l.facts, 0, gone)
	l.base += gone
	l.limit = max(logFacts, 2*len(l.facts))
}
