package policy

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

const (
	// defaultPrefillRate, tokens/s, is about one GPU; only ratios between backends matter.
	defaultPrefillRate = 10_000
	rateWindow         = 30 // a rate's memory in seconds of prefill
	ratePrior          = 1  // the weight of the fleet's rate in a backend's, in seconds of prefill
	// A rate from less evidence, in seconds of prefill, idle for so many ms, is dropped.
	scantEvidence, scantAfter = 3.0, 10_000
	rateMinTokens             = 256 // smaller prefills take one engine step whatever their length
	// rateOutlier bounds how far a sample counts below the estimate: one hang must not condemn a
	// backend.
	rateOutlier = 16
	rateDoubt   = 0.1  // weighs a slow prefill among several nodes, which may have waited for another's
	rateGuess   = 0.01 // weighs a slow non-streamed answer at a node without streams
)

// rateSums estimates tokens/s as a ratio of decayed sums.
type rateSums struct {
	tokens, seconds float64
}

func (r *rateSums) add(tokens, seconds, present, doubt float64) {
	if present > 0 {
		seconds = min(seconds, rateOutlier*tokens/present)
		if tokens < seconds*present {
			tokens, seconds = tokens*doubt, seconds*doubt
		}
	}
	r.tokens += tokens
	r.seconds += seconds
	if r.seconds > rateWindow {
		r.tokens /= 2
		r.seconds /= 2
	}
}

func (r rateSums) plus(o rateSums) rateSums {
	return rateSums{r.tokens + o.tokens, r.seconds + o.seconds}
}

func (r rateSums) estimate(prior float64) float64 {
	return (r.tokens + prior*ratePrior) / (r.seconds + ratePrior)
}

type fleetRate struct {
	mu    sync.Mutex
	sums  rateSums
	peers rateSums
	bits  atomic.Uint64
}

func newFleetRate(initial float64) *fleetRate {
	f := &fleetRate{}
	f.bits.Store(math.Float64bits(initial))
	return f
}

func (f *fleetRate) load() float64 { return math.Float64frombits(f.bits.Load()) }

func (f *fleetRate) add(tokens, seconds, doubt float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums.add(tokens, seconds, f.load(), doubt)
	f.bits.Store(math.Float64bits(f.sums.plus(f.peers).estimate(f.load())))
}

func (f *fleetRate) replace(before, now rateSums) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = rateSums{tokens: max(f.peers.tokens-before.tokens, 0) + now.tokens, seconds: max(f.peers.seconds-before.seconds, 0) + now.seconds}
	if f.peers.seconds > 0 {
		f.bits.Store(math.Float64bits(f.sums.plus(f.peers).estimate(f.load())))
	}
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
	r.rate.replace(s.peerRates, peers)
	s.peerRates = peers
	s.combine(r.rate.load())
}

// combine needs mu.
func (s *slot) combine(prior float64) {
	all, rate := s.rates.plus(s.peerRates), 0.0
	if all.seconds > 0 {
		rate = all.estimate(prior)
	}
	s.scant.Store(all.seconds < ratePrior)
	s.rate.Store(math.Float64bits(rate))
}

// learnRate records a prefill; doubt is its weight if slower than the present rate.
func (s *slot) learnRate(f *fleetRate, tokens, seconds, doubt float64, now prefixtree.Time) {
	if tokens < rateMinTokens || seconds <= 0 {
		return
	}
	f.add(tokens, seconds, doubt)
	s.mu.Lock()
	defer s.mu.Unlock()
	present := math.Float64frombits(s.rate.Load())
	if doubt < 1 {
		present = s.rateOr(f.load())
	}
	s.rates.add(tokens, seconds, present, doubt)
	s.measured = now
	s.combine(f.load())
}

// freshen drops a rate with little evidence, or a backend that only seemed slow would stay unused.
func (s *slot) freshen(f *fleetRate, now prefixtree.Time) {
	if s.active.Load() > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now-s.measured < scantAfter || s.rates.plus(s.peerRates).seconds >= scantEvidence {
		return
	}
	s.rates = rateSums{}
	s.combine(f.load())
}

const (
	defaultBytesPerToken = 4.0     // typical of English and code
	maxModels            = 256     // further models share one estimate
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

// modelStats is copy on write: lookups neither lock nor allocate.
type modelStats struct {
	mu     sync.Mutex
	byName atomic.Pointer[map[string]*modelStat]
	shared *modelStat
}

func newModelStats() *modelStats {
	m := &modelStats{shared: newModelStat()}
	m.byName.Store(&map[string]*modelStat{})
	return m
}

func (m *modelStats) of(name []byte) *modelStat {
	if s := (*m.byName.Load())[string(name)]; s != nil {
		return s
	}
	if len(name) == 0 {
		return m.shared
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.byName.Load()
	if s := old[string(name)]; s != nil {
		return s
	}
	if len(old) >= maxModels {
		return m.shared
	}
	next := maps.Clone(old)
	s := newModelStat()
	next[string(name)] = s
	m.byName.Store(&next)
	return s
}
