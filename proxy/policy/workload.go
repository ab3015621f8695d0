package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"grapevine.example/prefixtree"
)

const (
	loadSmooth = 0.01 // the least weight of one request
	loadWindow = 4000 // bounds the weight of the mean among nodes, in requests
	// Memory of the rates, and the least time averaged over, in seconds.
	demandWindow, demandStart = 60.0, 5.0
)

// workload measures what a pool's requests ask of it. Safe for concurrent use.
type workload struct {
	mu    sync.Mutex
	mean  float64     // whole prefill in seconds; 0: no request yet
	total float64     // requests, at most loadWindow
	peers PoolTraffic // of the other nodes; zero if unknown

	arrivals float64 // requests, decayed with demandWindow
	sums     work    // likewise
	later    float64 // latest Scene.later
	since    prefixtree.Time
	last     prefixtree.Time
}

type traffic struct {
	mean    float64 // mean whole prefill, seconds
	rate    float64 // requests/s at this node, including this one
	others  float64 // requests/s at all other nodes
	prefill float64 // seconds per second that all nodes' requests need beyond caches
	// uncached is the mean of what caches do not save, seconds.
	uncached float64
}

// work is in seconds: of one request, or sums.
type work struct {
	whole    float64 // prefill of the whole prompt
	uncached float64 // what caches do not save of it
	saved    float64 // prefill that the choice of a cache saved, compared with the place without
	waited   float64 // longer wait for that cache
}

// now takes a whole prefill in seconds.
func (p *workload) now(whole float64, nodes int, now prefixtree.Time) traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	o := traffic{mean: p.mean, rate: (p.arrivals*fade + 1) / covered, prefill: p.sums.uncached * fade / covered}
	if p.peers.Requests > 0 {
		o.mean = (p.mean*p.total + p.peers.Work) / (p.total + p.peers.Requests)
	}
	if o.mean == 0 {
		o.mean = whole
	}
	if p.peers.Rate > 0 {
		o.others = p.peers.Rate
		o.prefill += p.peers.Prefill
	} else { // assume the same traffic at the other nodes
		o.others = o.rate * float64(nodes-1)
		o.prefill *= float64(nodes)
	}
	if o.uncached = o.prefill / (o.rate + o.others); o.uncached == 0 {
		o.uncached = o.mean
	}
	return o
}

func (p *workload) count(w work, later float64, now prefixtree.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total, p.later = min(p.total+1, loadWindow), later
	p.mean += max(loadSmooth, 1/p.total) * (w.whole - p.mean)
	if p.since == 0 {
		p.since = now
	}
	fade, _ := p.fadeLocked(now)
	p.arrivals = p.arrivals*fade + 1
	p.sums = work{p.sums.whole*fade + w.whole, p.sums.uncached*fade + w.uncached, p.sums.saved*fade + w.saved, p.sums.waited*fade + w.waited}
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

// PoolTraffic describes the recent requests for one pool, at one node or summed over nodes.
type PoolTraffic struct {
	Pool     uint64        // the same on all nodes
	Rate     float64       // requests/s
	Prefill  float64       // seconds of prefill per second that caches do not save
	Requests float64       // number of requests in Work
	Work     float64       // seconds of whole prefills
	Prefixes []PrefixCount // the first counts all requests; of one node at most prefixesTold others
}

const leastRate = 0.1 / demandWindow // requests/s: one in ten windows

// OwnTraffic returns this node's traffic in the busiest pools.
func (r *Router) OwnTraffic(pools int, now prefixtree.Time) (list []PoolTraffic) {
	meters := make(map[uint64]*workMeter)
	for _, p := range r.table.Load().pools {
		if traffic := p.load.own(p.key, now); traffic.Rate >= leastRate {
			list, meters[p.key] = append(list, traffic), &p.work
		}
	}
	slices.SortFunc(list, func(a, b PoolTraffic) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	list = list[:min(len(list), pools)]
	for i := range list {
		list[i].Prefixes = meters[list[i].Pool].prefixes()
	}
	return list
}

func (p *workload) own(pool uint64, now prefixtree.Time) PoolTraffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	return PoolTraffic{Pool: pool, Rate: p.arrivals * fade / covered, Prefill: p.sums.uncached * fade / covered, Requests: p.total, Work: p.mean * p.total}
}

// SetPeerTraffic sets the other nodes' traffic, summed by pool; nil: unknown. The map must not change afterwards.
func (r *Router) SetPeerTraffic(sum map[uint64]PoolTraffic) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.peerTraffic = sum
	for _, p := range r.table.Load().pools {
		p.hear(sum[p.key])
	}
}

// hear takes the other nodes' sum; zero: unknown.
func (p *pool) hear(sum PoolTraffic) {
	p.work.setPeers(sum.Prefixes, p.fairShare())
	sum.Prefixes = nil
	p.load.setPeers(sum)
}

// setPeers sets the other nodes' sum; zero: unknown.
func (p *workload) setPeers(sum PoolTraffic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers = sum
}

// Affinity describes what the reuse of caches gains a pool, at this node over the last minute.
// Times are seconds per second.
type Affinity struct {
	Model   string  // "": requests without a model; "*": models that no backend lists
	Rate    float64 // requests/s
	Whole   float64 // prefill of the whole prompts
	Prefill float64 // what caches do not save of it
	Saved   float64 // prefill that choosing a cache saved, compared with the shortest wait
	Waited  float64 // longer waits for these caches
	Price   float64 // seconds of other requests that a second of prefill costs, at the latest request
}

// Affinities returns the models in use, busiest first. The pools that rules make of a model's backends are summed; Price is the
// highest of them.
func (r *Router) Affinities(now prefixtree.Time) (list []Affinity) {
	byModel := make(map[string]int)
	for _, p := range r.table.Load().pools {
		a := p.load.affinity(now)
		if !p.named || a.Rate < leastRate {
			continue
		}
		a.Model = p.model
		if i, known := byModel[p.model]; known {
			list[i].add(&a)
		} else {
			byModel[p.model] = len(list)
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b Affinity) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Model, b.Model)) })
	return list
}

func (a *Affinity) add(b *Affinity) {
	a.Rate, a.Whole, a.Prefill = a.Rate+b.Rate, a.Whole+b.Whole, a.Prefill+b.Prefill
	a.Saved, a.Waited, a.Price = a.Saved+b.Saved, a.Waited+b.Waited, max(a.Price, b.Price)
}

func (p *workload) affinity(now prefixtree.Time) Affinity {
	p.mu.Lock()
	defer p.mu.Unlock()
	fade, covered := p.fadeLocked(now)
	f := fade / covered
	return Affinity{Rate: p.arrivals * f, Whole: p.sums.whole * f, Prefill: p.sums.uncached * f, Saved: p.sums.saved * f, Waited: p.sums.waited * f, Price: p.later}
}
