package policy

import (
	"math"
	"sync"
)

const (
	// paceBuckets of a quarter octave each, from paceLeast seconds up: 1 ms to 4.6 h.
	paceBuckets, paceOctave, paceLeast = 96, 4, 1e-3
	// paceWindow halves the histogram when it holds so many requests: a few minutes of a busy node.
	paceWindow = 4000
	// paceSupport is the least number of requests that make a tail: before, nothing counts as slow.
	paceSupport = 50
	// paceSmooth is the weight of one request in the mean.
	paceSmooth = 0.01
)

// pace knows how long prompts of a pool take at best: the mean time of a whole prefill, and the distribution of the
// soonest first token each request could have had. Both scale the price of waiting, so that the same constants fit
// prompts of 0.2 s and of 10 s. Safe for concurrent use.
type pace struct {
	mu     sync.Mutex
	mean   float64 // seconds; 0 before the first request
	counts [paceBuckets]float64
	total  float64
}

// observe returns the mean whole prefill and the slow mark (see slowMark), both in seconds, and then counts a request whose
// whole prompt would take whole seconds and whose soonest first token is in soonest, unless peek.
func (p *pace) observe(whole, soonest float64, peek bool) (mean, slow float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mean, slow = p.mean, p.slowMark()
	if mean == 0 {
		mean = whole
	}
	if peek {
		return mean, slow
	}
	p.mean = mean + paceSmooth*(whole-mean)
	at := int(math.Log2(max(soonest, paceLeast)/paceLeast) * paceOctave)
	p.counts[min(at, paceBuckets-1)]++
	if p.total++; p.total > paceWindow {
		for i := range p.counts {
			p.counts[i] /= 2
		}
		p.total /= 2
	}
	return mean, slow
}

// slowMark returns slowShare times the time that all but slowRest of recent requests could have had their first token in.
func (p *pace) slowMark() float64 {
	if p.total < paceSupport {
		return math.Inf(1)
	}
	rest := p.total * slowRest
	for i := paceBuckets - 1; i >= 0; i-- {
		if n := p.counts[i]; n > rest {
			return slowShare * paceLeast * math.Exp2((float64(i)+1-rest/n)/paceOctave)
		}
		rest -= p.counts[i]
	}
	return 0
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
