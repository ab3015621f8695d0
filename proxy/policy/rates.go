package policy

import (
	"math"
	"sync"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

const (
	// defaultPrefillRate, tokens/s, is about one GPU; only ratios between backends matter.
	defaultPrefillRate = 10_000
	rateWindow         = 30      // a rate's memory in seconds of prefill
	ratePrior          = 10      // seconds of prefill that make a backend's rate its own; before, the fleet's fills them up
	fleetPrior         = 1       // the same for the fleet's rate, filled up by the configured one
	paceWindow         = 1 << 10 // answers
	leastPace          = 50      // answers before a line fits their durations
	rateMinTokens      = 256     // smaller prefills take one engine step whatever their length
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

type fleetRate struct {
	mu    sync.Mutex
	sums  rateSums
	prior float64   // configured, or what answers that were not streamed show
	whole durations // of these
	bits  atomic.Uint64
}

func newFleetRate(initial float64) *fleetRate {
	f := &fleetRate{prior: initial}
	f.bits.Store(math.Float64bits(initial))
	return f
}

func (f *fleetRate) load() float64 { return math.Float64frombits(f.bits.Load()) }

func (f *fleetRate) add(tokens, seconds float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums.add(tokens, seconds, f.load())
	f.bits.Store(math.Float64bits(f.sums.estimate(f.prior, fleetPrior)))
}

// OwnRate returns the rate measured by this node, in tokens/s, and its weight in seconds of
// prefill.
func (r *Router) OwnRate(b prefixtree.Backend) (tokensPerSecond, weight float64) {
	s := r.table.Load().slot(b)
	if s == nil {
		return 0, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rates.seconds <= 0 {
		return 0, 0
	}
	return s.rates.tokens / s.rates.seconds, s.rates.seconds
}

// SetPeerRate replaces the other nodes' mean rate and total weight; 0 removes it.
func (r *Router) SetPeerRate(b prefixtree.Backend, tokensPerSecond, weight float64) {
	s := r.ledger.of(b)
	var peers rateSums
	if tokensPerSecond > 0 && weight > 0 && !math.IsInf(tokensPerSecond, 0) && !math.IsInf(weight, 0) {
		peers = rateSums{tokens: tokensPerSecond * weight, seconds: weight}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peerRates = peers
	s.combine()
}

// learnPace records an answer that was not streamed, the prefill of which is hidden in its duration.
// Compared with what the fleet takes for as many tokens, the duration shows the engine's speed.
func (s *slot) learnPace(f *fleetRate, tokens, seconds, outputs float64) {
	if tokens < rateMinTokens || seconds <= 0 {
		return
	}
	usual, prefill, rate := f.pace(tokens, seconds, outputs)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Long answers count more than short ones, which are mostly prefill and seem slow.
	s.rates.add(rate*usual*prefill, seconds*prefill, rate)
	s.combine()
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
func (s *slot) combine() {
	all := s.rates.plus(s.peerRates)
	if s.reported.seconds > 0 {
		all = s.reported
	}
	s.measured.Store(uint64(math.Float32bits(float32(all.tokens)))<<32 | uint64(math.Float32bits(float32(all.seconds))))
}

// learnRate records a prefill.
func (s *slot) learnRate(f *fleetRate, tokens, seconds float64) {
	if tokens < rateMinTokens {
		return
	}
	f.add(tokens, seconds)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates.add(tokens, seconds, s.rateOr(f.load()))
	s.combine()
}

const (
	defaultBytesPerToken = 4.0     // typical of English and code
	bytesWindow          = 1 << 20 // tokens: a few dozen long prompts
	bytesPrior           = 1 << 11
	// Beyond these bounds the bytes do not describe the prompt (images by hash).
	minBytesPerToken, maxBytesPerToken = 1.0, 16.0
)

// modelStat is one model's bytes per token, and how much engines cache beyond a match.
type modelStat struct {
	bits          atomic.Uint64
	mu            sync.Mutex
	bytes, tokens float64

	answers      atomic.Uint64
	found, fresh float64 // decayed tokens beyond matches: cached ones, and all
}

func newModelStat() *modelStat {
	m := &modelStat{bytes: bytesPrior * defaultBytesPerToken, tokens: bytesPrior}
	m.bits.Store(math.Float64bits(defaultBytesPerToken))
	return m
}

func (m *modelStat) bytesPerToken() float64 { return math.Float64frombits(m.bits.Load()) }

func (m *modelStat) learn(promptBytes, promptTokens int) {
	if promptBytes <= 0 || promptTokens <= 0 {
		return
	}
	if r := float64(promptBytes) / float64(promptTokens); r < minBytesPerToken || r > maxBytesPerToken {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += float64(promptBytes)
	m.tokens += float64(promptTokens)
	if m.tokens > bytesWindow {
		m.bytes /= 2
		m.tokens /= 2
	}
	m.bits.Store(math.Float64bits(m.bytes / m.tokens))
}

const (
	answersWindow = 1 << 20
	answersPrior  = 1 << 13 // tokens: a few follow-ups
)

// cachedAnswers returns the cached share beyond a match: generated answers.
func (m *modelStat) cachedAnswers() float64 { return math.Float64frombits(m.answers.Load()) }

// learnAnswers ignores counts below the match, which concern the tree.
func (m *modelStat) learnAnswers(held, cached, prompt float64) {
	if cached < held || cached > prompt || prompt <= held {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found += cached - held
	m.fresh += prompt - held
	if m.fresh > answersWindow {
		m.found /= 2
		m.fresh /= 2
	}
	m.answers.Store(math.Float64bits(m.found / (m.fresh + answersPrior)))
}
