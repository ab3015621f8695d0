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
	paceWindow         = 1 << 16 // output tokens: hundreds of answers
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
	mu      sync.Mutex
	sums    rateSums
	initial float64
	whole   struct{ prefill, seconds, outputs float64 } // sums over answers that were not streamed
	bits    atomic.Uint64
}

func newFleetRate(initial float64) *fleetRate {
	f := &fleetRate{initial: initial}
	f.bits.Store(math.Float64bits(initial))
	return f
}

func (f *fleetRate) load() float64 { return math.Float64frombits(f.bits.Load()) }

func (f *fleetRate) add(tokens, seconds float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums.add(tokens, seconds, f.load())
	f.bits.Store(math.Float64bits(f.sums.estimate(f.initial, fleetPrior)))
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
// Compared with what the fleet takes for as many output tokens, the duration shows the engine's speed.
func (s *slot) learnPace(f *fleetRate, tokens, seconds, outputs float64) {
	if tokens < rateMinTokens || seconds <= 0 {
		return
	}
	rate := f.load()
	usual, prefill := f.pace(tokens/rate, seconds, outputs)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Long answers count more than short ones, which are mostly prefill and seem slow.
	s.rates.add(rate*usual*prefill, seconds*prefill, rate)
	s.combine()
}

// pace returns the fleet's mean duration of an answer of so many output tokens, and the part of
// durations that is prefill, both including this answer.
func (f *fleetRate) pace(prefill, seconds, outputs float64) (usual, share float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &f.whole
	w.prefill, w.seconds, w.outputs = w.prefill+prefill, w.seconds+seconds, w.outputs+outputs
	if w.outputs > paceWindow {
		w.prefill, w.seconds, w.outputs = w.prefill/2, w.seconds/2, w.outputs/2
	}
	return w.seconds / w.outputs * outputs, w.prefill / w.seconds
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
