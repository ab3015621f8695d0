package books

import (
	"math"
	"sync"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

const (
	rateWindow    = 30      // a rate's memory in seconds of prefill
	ratePrior     = 10      // seconds of prefill that make a backend's rate its own; before, the fleet's fills them up
	fleetPrior    = 1.0     // the same for the fleet's rate, filled up by the configured one
	paceWindow    = 1 << 10 // answers
	leastPace     = 50      // answers before a line fits their durations
	rateMinTokens = 256     // smaller prefills take one engine step whatever their length
	// rateOutlier bounds how far a sample counts below the estimate: one hang must not condemn a
	// backend.
	rateOutlier = 16
)

// rateSums estimates tokens/s as a ratio of decayed sums.
type rateSums struct {
	tokens, seconds float64
}

func (r *rateSums) add(tokens, seconds, present float64) {
	if present > 0 {
		seconds = min(seconds, rateOutlier*tokens/present)
	}
	r.tokens += tokens
	r.seconds += seconds
	if r.seconds > rateWindow {
		r.tokens /= 2
		r.seconds /= 2
	}
}

// within keeps the rate and lowers its evidence to at most so many seconds.
func (r rateSums) within(most float64) rateSums {
	if part := most / r.seconds; part < 1 {
		return rateSums{r.tokens * part, most}
	}
	return r
}

func (r rateSums) plus(o rateSums) rateSums {
	return rateSums{r.tokens + o.tokens, r.seconds + o.seconds}
}

// estimate takes the prior for what is missing of so many seconds of evidence.
func (r rateSums) estimate(prior, enough float64) float64 {
	missing := max(enough-r.seconds, 0)
	return (r.tokens + prior*missing) / (r.seconds + missing)
}

// fleetRate is the rate of all engines. Safe for concurrent use after begin.
type fleetRate struct {
	bits  atomic.Uint64
	mu    sync.Mutex
	sums  rateSums
	prior float64   // configured, or what answers that were not streamed show
	whole durations // of these
}

func (f *fleetRate) begin(prior float64) {
	f.prior = prior
	f.bits.Store(math.Float64bits(prior))
}

func (f *fleetRate) load() float64 { return math.Float64frombits(f.bits.Load()) }

func (f *fleetRate) add(tokens, seconds float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums.add(tokens, seconds, f.load())
	f.bits.Store(math.Float64bits(f.sums.estimate(f.prior, fleetPrior)))
}

// FleetRate returns the prefill rate of all engines, in tokens/s; above 0.
func (f *Fleet) FleetRate() float64 { return f.rate.load() }

// OwnRate returns the rate measured by this node, in tokens/s, and its weight in seconds of
// prefill.
func (e *Engine) OwnRate() (tokensPerSecond, weight float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rates.seconds <= 0 {
		return 0, 0
	}
	return e.rates.tokens / e.rates.seconds, e.rates.seconds
}

// SetPeerRate replaces the other nodes' mean rate of a backend, in tokens/s, and its total weight, in seconds of prefill; 0 removes it.
func (f *Fleet) SetPeerRate(id prefixtree.Backend, tokensPerSecond, weight float64) {
	e := f.of(id)
	var peers rateSums
	if tokensPerSecond > 0 && weight > 0 && !math.IsInf(tokensPerSecond, 0) && !math.IsInf(weight, 0) {
		peers = rateSums{tokens: tokensPerSecond * weight, seconds: weight}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peerRates = peers
	e.combine()
}

// LearnPace records an answer of so many computed prompt tokens, seconds and output tokens that was not streamed, the prefill of which is
// hidden in its duration. Compared with what the fleet takes for as many tokens, the duration shows the engine's speed.
func (f *Fleet) LearnPace(e *Engine, tokens, seconds, outputs float64) {
	if tokens < rateMinTokens || seconds <= 0 {
		return
	}
	usual, prefill, rate := f.rate.pace(tokens, seconds, outputs)
	e.mu.Lock()
	defer e.mu.Unlock()
	// Long answers count more than short ones, which are mostly prefill and seem slow.
	e.rates.add(rate*usual*prefill, seconds*prefill, rate)
	e.combine()
}

// pace adds an answer, and returns what the fleet usually takes for one like it, the part of all durations that is prefill, and the
// fleet's rate.
func (f *fleetRate) pace(tokens, seconds, outputs float64) (usual, share, rate float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.whole.add(tokens, seconds, outputs)
	if perToken := f.whole.perPromptToken(); perToken > 0 {
		f.prior = min(1/perToken, mostRate)
		f.bits.Store(math.Float64bits(f.sums.estimate(f.prior, fleetPrior)))
	}
	rate = f.load()
	usual, share = f.whole.expect(1/rate, tokens, outputs)
	return usual, share, rate
}

// durations fits a line to the durations of answers that were not streamed: constant + computed prompt tokens / rate + output
// tokens x time. Answers fade, by half whenever they are paceWindow.
type durations struct {
	n                        float64 // answers
	tokens, outputs, seconds float64 // means of prompt tokens, output tokens and durations
	tt, oo, to, ts, os, ss   float64 // sums of products of two deviations from these means
}

func (d *durations) add(tokens, seconds, outputs float64) {
	if d.n++; d.n > paceWindow {
		d.n /= 2
		d.tt, d.oo, d.to, d.ts, d.os, d.ss = d.tt/2, d.oo/2, d.to/2, d.ts/2, d.os/2, d.ss/2
	}
	t, o, s, part := tokens-d.tokens, outputs-d.outputs, seconds-d.seconds, 1/d.n
	d.tokens, d.outputs, d.seconds = d.tokens+t*part, d.outputs+o*part, d.seconds+s*part
	part = 1 - part
	d.tt, d.oo, d.to = d.tt+t*t*part, d.oo+o*o*part, d.to+t*o*part
	d.ts, d.os, d.ss = d.ts+t*s*part, d.os+o*s*part, d.ss+s*s*part
}

// perPromptToken returns the seconds of a prompt token, and 0 while they are within three standard errors of nothing.
func (d *durations) perPromptToken() float64 {
	det := d.tt*(d.oo+1) - d.to*d.to // 1: answers of equal length leave the prompts alone
	if d.n < leastPace || det <= 0 {
		return 0
	}
	perPrompt := (d.ts*(d.oo+1) - d.os*d.to) / det
	perOutput := (d.os - perPrompt*d.to) / (d.oo + 1)
	left := max(d.ss-perPrompt*d.ts-perOutput*d.os, 0)
	if perPrompt <= 0 || perPrompt*perPrompt < 9*left/d.n*(d.oo+1)/det {
		return 0
	}
	return perPrompt
}

// expect returns the mean duration of an answer with so many tokens, and the part of all durations that is prefill.
func (d *durations) expect(perPrompt, tokens, outputs float64) (seconds, share float64) {
	perOutput := max(d.os-perPrompt*d.to, 0) / (d.oo + 1)
	prefill := perPrompt * d.tokens
	seconds = max(d.seconds+perPrompt*(tokens-d.tokens)+perOutput*(outputs-d.outputs), perPrompt*tokens)
	return seconds, min(prefill/d.seconds, 1)
}

// combine needs mu.
func (e *Engine) combine() {
	all := e.rates.plus(e.peerRates)
	if e.reported.seconds > 0 {
		all = e.reported
	}
	e.measured.Store(uint64(math.Float32bits(float32(all.tokens)))<<32 | uint64(math.Float32bits(float32(all.seconds))))
}

// LearnRate records a prefill of so many tokens and seconds.
func (f *Fleet) LearnRate(e *Engine, tokens, seconds float64) {
	if tokens < rateMinTokens {
		return
	}
	f.rate.add(tokens, seconds)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rates.add(tokens, seconds, e.RateOr(f.rate.load()))
	e.combine()
}
