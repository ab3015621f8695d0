package fleetsim

import (
	"time"

	"grapevine/chaos/report"
)

type exchange struct {
	link
	point    point
	facts    *factLog
	loads    loadExchange
	evidence *evidenceBoard
	meter    *meter
	apart    partitionPhase
}

// newExchange returns the exchange of a point, without nodes. Bytes are counted from warm-up to
// span, the end of arrivals.
func newExchange(cfg *Config, pt point, span time.Duration) (exchange, error) {
	x := exchange{point: pt}
	if pt.nodes == 1 || pt.staleness == Never || pt.share == ShareNone {
		return x, nil
	}
	x.link = link{delay: pt.staleness, nodes: pt.nodes, loss: cfg.Loss, seed: cfg.Options.Seed, Partition: cfg.Partition}
	x.meter = newMeter(pt.nodes, cfg.Warmup, span)
	if pt.share.prefixes() && !blind[pt.policy] {
		x.facts = newFactLog(x.link, x.meter)
	}
	if !pt.share.loads() {
		return x, nil
	}
	if x.none() {
		x.loads = newLoadBoard(x.link, cfg.Backends, x.meter)
		return x, nil
	}
	var err error
	x.loads, err = newLoadMatrix(x.link, cfg.Backends, x.meter)
	return x, err
}

func (x *exchange) hear(node int, now time.Duration) {
	if x.loads != nil {
		x.loads.deliver(node, now)
	}
	if x.evidence != nil {
		x.evidence.deliver(node, now)
	}
}

func (x *exchange) pass(now time.Duration, nodes []node) {
	if x.evidence != nil {
		x.evidence.sample(now)
	}
	if x.none() {
		return
	}
	// Each half detects the loss of the other, and later its return.
	n, staleness := x.point.fleet()
	switch {
	case x.apart == whole && now >= x.From+detection+x.delay:
		x.apart = noticed
		for i := range nodes {
			alive := n / 2
			if x.half(i) == 0 {
				alive = n - n/2
			}
			nodes[i].router.SetFleet(alive, staleness)
		}
	case x.apart == noticed && now >= x.To+reunion+x.delay:
		x.apart = healed
		for i := range nodes {
			nodes[i].router.SetFleet(n, staleness)
		}
	}
}

func (x *exchange) report() report.Gossip {
	var g report.Gossip
	if x.meter == nil {
		return g
	}
	g.BytesPerSPerNode = x.meter.perNode()
	ages := []float64{float64(x.delay) / float64(time.Millisecond)}
	if x.facts != nil && len(x.facts.ages) > 0 {
		ages = x.facts.ages
	}
	q := report.Summarise(ages)
	g.Convergence = report.Convergence{P50: q.P50, P99: q.P99}
	return g
}
