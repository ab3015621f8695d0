package fleetsim

import (
	"time"

	"grapevine/prefixtree"
)

// claim is what a node has learned about a backend from its own requests: weighted sums and
// weights.
type claim struct {
	reach, reachWeight float64
	rate, rateWeight   float64
}

func (c claim) plus(o claim, sign float64) claim {
	return claim{c.reach + sign*o.reach, c.reachWeight + sign*o.reachWeight, c.rate + sign*o.rate, c.rateWeight + sign*o.rateWeight}
}

type sample struct {
	at   time.Duration
	own  []claim
	sum  [2][]claim
	heat sampledHeat
}

// evidenceBoard shares the nodes' learned figures of the backends. It samples all nodes at fixed
// times and delivers after the delay: horizons and popularity with the placements, prefill rates
// and pace with the loads. Only the latest state counts, so it models no loss; in a partition each
// half hears itself.
type evidenceBoard struct {
	link
	nodes    []node
	facts    *factLog
	meter    *meter
	backends int
	reaches  bool
	rates    bool
	works    bool
	every    time.Duration
	next     time.Duration
	samples  []sample // samples still on their way, and the latest that has arrived
	spare    []sample
	taken    []time.Duration
}

const evidenceEvery = 5 * time.Second

// maxSamples bounds the samples on their way.
const maxSamples = 8

func newEvidenceBoard(x *exchange, nodes []node, backends int) *evidenceBoard {
	e := &evidenceBoard{
		link: x.link, nodes: nodes, facts: x.facts, meter: x.meter, backends: backends, reaches: x.facts != nil,
		rates: x.point.share.loads(), every: max(evidenceEvery, x.delay/maxSamples), taken: make([]time.Duration, len(nodes)),
	}
	e.next = e.every
	return e
}

func (e *evidenceBoard) sample(now time.Duration) {
	if now < e.next {
		return
	}
	// No event happened since e.next, so one sample serves for all that were due.
	at := now / e.every * e.every
	e.next = at + e.every
	var s sample
	if n := len(e.spare); n > 0 {
		s, e.spare = e.spare[n-1], e.spare[:n-1]
		clear(s.sum[0])
		clear(s.sum[1])
	} else {
		s.own = make([]claim, len(e.nodes)*e.backends)
		s.sum = [2][]claim{make([]claim, e.backends), make([]claim, e.backends)}
	}
	s.at, s.heat = at, newSampledHeat(len(e.nodes))
	for i := range e.nodes {
		if e.facts != nil {
			e.facts.deliver(i, at) // evidence ages from the latest time that the tree has seen
		}
		half, claims := s.sum[e.half(i)], 0
		for b := range e.backends {
			c := e.claim(&e.nodes[i], prefixtree.Backend(b))
			s.own[i*e.backends+b] = c
			half[b] = half[b].plus(c, 1)
			if c != (claim{}) {
				claims++
			}
		}
		h := e.ownHeat(&e.nodes[i], at)
		s.heat.take(i, e.half(i), &h)
		e.meter.state(at, claims, &h)
	}
	e.samples = append(e.samples, s)
	for len(e.samples) > 1 && e.samples[1].at+e.delay <= now {
		e.spare = append(e.spare, e.samples[0])
		e.samples = append(e.samples[:0], e.samples[1:]...)
	}
}

func (e *evidenceBoard) claim(n *node, b prefixtree.Backend) (c claim) {
	if e.reaches {
		v, w := n.tree.LRUDistance(b)
		c.reach, c.reachWeight = v*w, w
	}
	if e.rates {
		v, w := n.router.OwnRate(b)
		c.rate, c.rateWeight = v*w, w
	}
	return c
}

func (e *evidenceBoard) deliver(index int, now time.Duration) {
	latest := len(e.samples) - 1
	for latest >= 0 && e.samples[latest].at+e.delay > now {
		latest--
	}
	if latest < 0 || e.taken[index] == e.samples[latest].at {
		return
	}
	s := &e.samples[latest]
	e.taken[index] = s.at
	n := &e.nodes[index]
	n.router.SetPeerHeat(s.heat.heard(e.half(index), e.up(s.at)), s.heat.own[index])
	mine, theirs := s.sum[e.half(index)], s.sum[1-e.half(index)]
	for b := range e.backends {
		c := mine[b].plus(s.own[index*e.backends+b], -1)
		if e.up(s.at) {
			c = c.plus(theirs[b], 1)
		}
		if e.reaches {
			n.tree.SetPeerLRUDistance(prefixtree.Backend(b), mean(c.reach, c.reachWeight), weight(c.reachWeight))
		}
		if e.rates {
			n.router.SetPeerRate(prefixtree.Backend(b), mean(c.rate, c.rateWeight), weight(c.rateWeight))
		}
	}
}

const leastWeight = 1e-9

func weight(w float64) float64 {
	if w < leastWeight {
		return 0
	}
	return w
}

func mean(sum, w float64) float64 {
	if w < leastWeight {
		return 0
	}
	return max(sum/w, 0)
}
