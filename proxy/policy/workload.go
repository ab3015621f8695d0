package policy

import (
	"math"
	"sync"

	"grapevine/prefixtree"
)

const (
	loadBuckets, loadOctave, loadLeast = 96, 4, 1e-3 // buckets of a quarter octave from 1 ms up to 4.6 h
	loadWindow                         = 4000        // halves the histogram: a few minutes of a busy node
	loadSupport                        = 50          // requests, of all nodes, allow a slow mark
	loadSmooth                         = 0.01        // the least weight of one request
	// The slow mark is slowShare of the time in which all but slowRest of requests could have had
	// their first token at best, so waiting does not raise it.
	slowShare, slowRest = 0.8, 0.01
	// Memory of the demand, and the least time averaged over, in seconds.
	demandWindow, demandStart = 60.0, 5.0
)

// workload measures a pool's best times to first token and its demand. Safe for concurrent use.
type workload struct {
	mu     sync.Mutex
	mean   float64 // whole prefill in seconds; 0: no request yet
	seen   float64
	counts [loadBuckets]float64
	total  float64
	peers  PoolTraffic // of the other nodes; zero if unknown

	work     float64 // whole prefills in seconds, decayed with demandWindow
	arrivals float64 // requests, decayed with demandWindow
	since    prefixtree.Time
	last     prefixtree.Time
}

type traffic struct {
	mean   float64 // mean whole prefill, seconds
	slow   float64 // slow mark, seconds; +Inf if unknown
	rate   float64 // requests/s at this node, including this one
	demand float64 // prefill seconds per second without caches, including this request

	others      float64 // requests/s at all other nodes
	fleetDemand float64 // demand at all nodes
}

// now takes a whole prefill in seconds.
func (p *workload) now(whole float64, nodes int, now prefixtree.Time) traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	o := traffic{mean: p.mean, slow: p.slowMark(), rate: (p.arrivals*fade + 1) / covered, demand: (p.work*fade + whole) / covered}
	if p.peers.Requests > 0 {
		o.mean = (p.mean*p.total + p.peers.Work) / (p.total + p.peers.Requests)
	}
	if o.mean == 0 {
		o.mean = whole
	}
	// Without reports, assume the same traffic at the other nodes.
	o.others, o.fleetDemand = o.rate*float64(nodes-1), o.demand*float64(nodes)
	if p.peers.Rate > 0 {
		o.others, o.fleetDemand = p.peers.Rate, o.demand+p.peers.Demand
	}
	return o
}

// count takes seconds.
func (p *workload) count(whole, soonest float64, now prefixtree.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	p.mean += max(loadSmooth, 1/p.seen) * (whole - p.mean)
	at := min(math.Log2(max(soonest, loadLeast)/loadLeast)*loadOctave, loadBuckets-1)
	p.counts[int(at)]++
	if p.total++; p.total > loadWindow {
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

func (p *workload) fadeLocked(now prefixtree.Time) (fade, covered float64) {
	now = max(now, p.last)
	since := now
	if p.since != 0 {
		since = p.since
	}
	return math.Exp(-seconds(p.last, now) / demandWindow), demandWindow * (1 - math.Exp(-(seconds(since, now)+demandStart)/demandWindow))
}

func seconds(from, to prefixtree.Time) float64 { return float64(max(to-from, 0)) / 1000 }

func (p *workload) slowMark() float64 {
	total := p.total + p.peers.Requests
	if total < loadSupport {
		return math.Inf(1)
	}
	rest := total * slowRest
	for i := loadBuckets - 1; i >= 0; i-- {
		n := p.counts[i] + p.peers.Soonest[i]
		if n > rest {
			return slowShare * loadLeast * math.Exp2((float64(i)+1-rest/n)/loadOctave)
		}
		rest -= n
	}
	return 0
}

// PoolTraffic describes the recent requests for one pool, at one node or summed over nodes.
type PoolTraffic struct {
	Pool     uint64               // the same on all nodes
	Rate     float64              // requests/s
	Demand   float64              // prefill seconds per second without caches
	Requests float64              // number of requests in Work and Soonest
	Work     float64              // seconds of whole prefills
	Soonest  [loadBuckets]float64 // by best time to first token, in quarter octaves from 1 ms
}

const TrafficBuckets = loadBuckets

const leastRate = 0.1 / demandWindow // requests/s: one in ten windows

func (p *PoolTraffic) add(o *PoolTraffic) {
	p.Rate += o.Rate
	p.Demand += o.Demand
	p.Requests += o.Requests
	p.Work += o.Work
	for i := range p.Soonest {
		p.Soonest[i] += o.Soonest[i]
	}
}

func (p *workload) own(pool uint64, now prefixtree.Time) PoolTraffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	return PoolTraffic{
		Pool: pool, Rate: p.arrivals * fade / covered, Demand: p.work * fade / covered,
		Requests: p.total, Work: p.mean * p.total, Soonest: p.counts,
	}
}

// setPeers sets the other nodes' sum; nil: unknown.
func (p *workload) setPeers(sum *PoolTraffic) {
	if sum == nil {
		sum = new(PoolTraffic)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers = *sum
}

type holdTime struct {
	mu   sync.Mutex
	mean float64
}

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
