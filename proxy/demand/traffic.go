// Package demand measures what the requests for one pool ask of its engines: how many arrive, what prefill they need, and with which
// prefixes many of their prompts begin. Nodes exchange these measures. It chooses nothing and knows no engine; time is a parameter.
package demand

import (
	"math"
	"sync"

	"grapevine.example/prefixtree"
)

const (
	demandWindow = 60.0 // seconds: memory of the rates
	// LeastRate, in requests/s, is that of a pool in use: one request in ten windows.
	LeastRate = 0.1 / demandWindow
)

// Traffic measures how many requests arrive and what prefill they need. The zero value is ready. Safe for concurrent use.
type Traffic struct {
	mu    sync.Mutex
	peers Report // of the other nodes; zero if unknown

	clock
	arrivals float64 // requests, decayed with demandWindow
	sums     Prefill // likewise
	price    float64 // latest
}

// Rates are those of all nodes' requests. Times are in seconds.
type Rates struct {
	Mean     float64 // whole prefill of a request
	Own      float64 // requests/s at this node, including the present one
	Others   float64 // requests/s at all other nodes
	Prefill  float64 // seconds per second that the requests need beyond caches
	Uncached float64 // what caches do not save of a request's prefill
}

// Prefill is in seconds: of one request, or sums.
type Prefill struct {
	Whole    float64 // of the whole prompt
	Uncached float64 // what caches do not save of it
	Saved    float64 // what the choice of a cache saved, compared with the place without
	Waited   float64 // longer wait for that cache
}

// clock begins with the first request.
type clock struct{ since, last prefixtree.Time }

// fade returns what is left of sums as they were at last.
func (c clock) fade(now prefixtree.Time, window float64) float64 {
	return math.Exp(-seconds(c.last, now) / window)
}

// covers returns the seconds, weighted as sums fade, that they stand for: a tenth of the window more than since the first request, or a
// few requests in a row would show a high rate.
func (c clock) covers(now prefixtree.Time, window float64) float64 {
	if c.since == 0 {
		c.since = now
	}
	return window * (1 - math.Exp(-(seconds(c.since, max(now, c.last))/window + 0.1)))
}

func seconds(from, to prefixtree.Time) float64 { return float64(max(to-from, 0)) / 1000 }

// Rates returns the rates of the fleet, counting the request that arrives now; whole is the prefill time of its prompt without a cache, in
// seconds. Until the first report of another node, Rates assumes that each of the nodes receives as many requests as this one.
func (t *Traffic) Rates(whole float64, nodes int, now prefixtree.Time) Rates {
	t.mu.Lock()
	defer t.mu.Unlock()
	fade, covered := t.faded(now)
	own := t.report(fade / covered)
	o := Rates{Mean: whole, Own: own.Rate + 1/covered, Prefill: own.Prefill}
	if all := own.Rate + t.peers.Rate; all >= LeastRate && own.Whole+t.peers.Whole > 0 {
		o.Mean = (own.Whole + t.peers.Whole) / all
	}
	if t.peers.Rate > 0 {
		o.Others = t.peers.Rate
		o.Prefill += t.peers.Prefill
	} else {
		o.Others = o.Own * float64(nodes-1)
		o.Prefill *= float64(nodes)
	}
	if o.Uncached = o.Prefill / (o.Own + o.Others); o.Uncached == 0 {
		o.Uncached = o.Mean
	}
	return o
}

// Count adds a request, and the price in seconds of other requests of a second of its prefill.
func (t *Traffic) Count(p Prefill, price float64, now prefixtree.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.price = price; t.since == 0 {
		t.since = now
	}
	fade, s := t.fade(now, demandWindow), t.sums
	t.arrivals = t.arrivals*fade + 1
	t.sums = Prefill{s.Whole*fade + p.Whole, s.Uncached*fade + p.Uncached, s.Saved*fade + p.Saved, s.Waited*fade + p.Waited}
	t.last = max(t.last, now)
}

// Report is what a node sends the others about the recent requests for one pool, or the sum of such reports.
type Report struct {
	Pool     uint64  // the same on all nodes
	Rate     float64 // requests/s
	Whole    float64 // seconds of prefill per second that they need without caches
	Prefill  float64 // of these, what caches do not save
	Prefixes []Count // the first counts all requests; of one node at most prefixesTold others
}

// Report returns this node's, without the prefixes.
func (t *Traffic) Report(pool uint64, now prefixtree.Time) Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	fade, covered := t.faded(now)
	own := t.report(fade / covered)
	own.Pool = pool
	return own
}

// report returns the sums times part, in 1/s, as rates. Needs mu.
func (t *Traffic) report(part float64) Report {
	return Report{Rate: t.arrivals * part, Whole: t.sums.Whole * part, Prefill: t.sums.Uncached * part}
}

// faded returns what is left of the sums, and the seconds that they stand for. Needs mu.
func (t *Traffic) faded(now prefixtree.Time) (fade, covered float64) {
	return t.fade(now, demandWindow), t.covers(now, demandWindow)
}

// SetPeers takes the other nodes' sum; zero: unknown.
func (t *Traffic) SetPeers(sum Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peers = sum
}

// Affinity tells what the reuse of caches gains the requests for a model, at this node over the last minute. Times are seconds per second.
type Affinity struct {
	Model   string  // "": requests without a model; "*": models that no backend lists
	Rate    float64 // requests/s
	Whole   float64 // see Prefill
	Prefill float64 // Prefill.Uncached
	Saved   float64
	Waited  float64
	Price   float64 // seconds of other requests that a second of prefill costs, at the latest request
}

// Affinity returns that of a model's pool.
func (t *Traffic) Affinity(model string, now prefixtree.Time) Affinity {
	t.mu.Lock()
	defer t.mu.Unlock()
	fade, covered := t.faded(now)
	f := fade / covered
	own := t.report(f)
	return Affinity{model, own.Rate, own.Whole, own.Prefill, t.sums.Saved * f, t.sums.Waited * f, t.price}
}

// Add adds another pool's; the higher price stays.
func (a *Affinity) Add(b Affinity) {
	a.Rate, a.Whole, a.Prefill = a.Rate+b.Rate, a.Whole+b.Whole, a.Prefill+b.Prefill
	a.Saved, a.Waited, a.Price = a.Saved+b.Saved, a.Waited+b.Waited, max(a.Price, b.Price)
}
