package policy

import (
	"math"
	"sync"

	"grapevine/prefixtree"
)

const (
	// paceBuckets of a quarter octave each, from paceLeast seconds up: 1 ms to 4.6 h.
	paceBuckets, paceOctave, paceLeast = 96, 4, 1e-3
	// paceWindow halves the histogram when it holds so many requests: a few minutes of a busy node.
	paceWindow = 4000
	// paceSupport is the least number of requests, of all nodes that tell, that make a tail: before, nothing counts as slow.
	paceSupport = 50
	// paceSmooth is the least weight of one request in the mean.
	paceSmooth = 0.01
	// slowShare, slowRest: the slow mark is 0.8 of the time in which all but 1 % of recent requests could have had their first
	// token at best. The slowest prompts set that mark, not the waiting, so that following caches does not raise it.
	slowShare, slowRest = 0.8, 0.01
	// demandWindow is the memory of the demand in seconds; demandStart the least time it is taken over, so that the first
	// requests of a node do not look like a flood.
	demandWindow, demandStart = 60.0, 5.0
)

// pace knows how long prompts of a pool take at best, and how much of them there is. It scales the price of waiting, so
// that the same constants fit prompts of 0.2 s and of 10 s. Safe for concurrent use.
type pace struct {
	mu     sync.Mutex
	mean   float64 // seconds; 0 before the first request
	seen   float64 // requests, not faded
	counts [paceBuckets]float64
	total  float64
	peers  Pace // of the other nodes; zero if nothing is known of it

	work     float64         // whole prefills in seconds, decayed with demandWindow
	arrivals float64         // requests, likewise
	since    prefixtree.Time // of the first request
	last     prefixtree.Time
}

// outlook is what a pace says before a request.
type outlook struct {
	mean   float64 // whole prefill of a recent prompt, seconds
	slow   float64 // the slow mark, seconds; +Inf while too little is known
	rate   float64 // requests a second at this node, this one included
	demand float64 // prefill seconds asked for in a second here if nothing were cached, this request included

	others      float64 // requests a second at all other nodes
	fleetDemand float64 // demand at all nodes
}

// outlook returns what the past says at a request whose whole prompt would take whole seconds, at one of so many nodes.
func (p *pace) outlook(whole float64, nodes int, now prefixtree.Time) outlook {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	o := outlook{mean: p.mean, slow: p.slowMark(), rate: (p.arrivals*fade + 1) / covered, demand: (p.work*fade + whole) / covered}
	if p.peers.Requests > 0 {
		o.mean = (p.mean*p.total + p.peers.Work) / (p.total + p.peers.Requests)
	}
	if o.mean == 0 {
		o.mean = whole
	}
	// Of others that have told nothing it is assumed that they see as much.
	o.others, o.fleetDemand = o.rate*float64(nodes-1), o.demand*float64(nodes)
	if p.peers.Rate > 0 {
		o.others, o.fleetDemand = p.peers.Rate, o.demand+p.peers.Demand
	}
	return o
}

// count takes in a request whose whole prompt would take whole seconds and whose soonest first token is in soonest.
func (p *pace) count(whole, soonest float64, now prefixtree.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	p.mean += max(paceSmooth, 1/p.seen) * (whole - p.mean)
	at := min(math.Log2(max(soonest, paceLeast)/paceLeast)*paceOctave, paceBuckets-1)
	p.counts[int(at)]++
	if p.total++; p.total > paceWindow {
		for i := range p.counts {
			p.counts[i] /= 2
		}
		p.total /= 2
	}
	if p.since == 0 {
		p.since = now
	}
	fade, _ := p.fadeLocked(now)
	p.work = p.work*fade + whole
	p.arrivals = p.arrivals*fade + 1
	p.last = max(p.last, now)
}

// fadeLocked returns what the sums of the past count now, and the seconds they are taken over.
func (p *pace) fadeLocked(now prefixtree.Time) (fade, covered float64) {
	now = max(now, p.last)
	since := now
	if p.since != 0 {
		since = p.since
	}
	return math.Exp(-seconds(p.last, now) / demandWindow), demandWindow * (1 - math.Exp(-(seconds(since, now)+demandStart)/demandWindow))
}

// seconds returns the time from one moment to another, 0 if the clock went back.
func seconds(from, to prefixtree.Time) float64 { return float64(max(to-from, 0)) / 1000 }

// slowMark returns slowShare times the time that all but slowRest of recent requests could have had their first token in.
func (p *pace) slowMark() float64 {
	total := p.total + p.peers.Requests
	if total < paceSupport {
		return math.Inf(1)
	}
	rest := total * slowRest
	for i := paceBuckets - 1; i >= 0; i-- {
		n := p.counts[i] + p.peers.Soonest[i]
		if n > rest {
			return slowShare * paceLeast * math.Exp2((float64(i)+1-rest/n)/paceOctave)
		}
		rest -= n
	}
	return 0
}

// Pace is what one node has lately seen of the requests for one pool of backends, or several nodes together.
type Pace struct {
	Pool     uint64               // name of the pool: the same on all nodes
	Rate     float64              // requests a second
	Demand   float64              // prefill seconds a second that they would need without any cache
	Requests float64              // of which Work and Soonest are
	Work     float64              // seconds of their whole prefills
	Soonest  [paceBuckets]float64 // how many could have had their first token in which quarter octave from 1 ms up
}

// PaceBuckets is the number of quarter octaves of a Pace.
const PaceBuckets = paceBuckets

// leastRate is the rate in requests a second from which a pace is told: one request in ten memories of it.
const leastRate = 0.1 / demandWindow

// add adds another pace, or takes it out again (sign -1).
func (p *Pace) add(o *Pace, sign float64) {
	p.Rate = max(p.Rate+sign*o.Rate, 0)
	p.Demand = max(p.Demand+sign*o.Demand, 0)
	p.Requests = max(p.Requests+sign*o.Requests, 0)
	p.Work = max(p.Work+sign*o.Work, 0)
	for i := range p.Soonest {
		p.Soonest[i] = max(p.Soonest[i]+sign*o.Soonest[i], 0)
	}
}

// own returns what this node has seen itself.
func (p *pace) own(pool uint64, now prefixtree.Time) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	return Pace{
		Pool: pool, Rate: p.arrivals * fade / covered, Demand: p.work * fade / covered,
		Requests: p.total, Work: p.mean * p.total, Soonest: p.counts,
	}
}

// setPeers replaces what the others have seen by all, less own; nil is nothing.
func (p *pace) setPeers(all, own *Pace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers = Pace{}
	if all == nil {
		return
	}
	p.peers = *all
	if own != nil {
		p.peers.add(own, -1)
	}
}

// holdTime learns how long requests keep their memory after the first token, in seconds: a decayed mean over the fleet.
type holdTime struct {
	mu   sync.Mutex
	mean float64
}

// holdSmooth is the weight of one request in the mean.
const holdSmooth = 0.02

func (h *holdTime) add(seconds float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mean == 0 {
		h.mean = seconds
		return
	}
	h.mean += holdSmooth * (seconds - h.mean)
}

func (h *holdTime) load() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mean
}
