package policy

import (
	"math"
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

const (
	// defaultPrefillRate is the prior for a fleet nobody has measured: about one current GPU serving a mid-size model, tokens/s.
	// Only ratios between backends matter to a choice, so a wrong prior costs nothing once it is common to all.
	defaultPrefillRate = 10_000
	// rateWindow bounds the memory of a rate to this many seconds of prefill; older samples fade by halves.
	rateWindow = 30
	// ratePrior is the weight of the fleet's rate in a backend's own, in seconds of prefill: one sample does not decide.
	ratePrior = 1
	// A backend of which all nodes together have measured less than scantEvidence seconds of prefill, and nothing for scantAfter milliseconds,
	// is taken to be as fast as the fleet again: see freshen.
	scantEvidence, scantAfter = 3.0, 10_000
	// rateMinTokens excludes tiny prefills: their time is one engine step whatever their length.
	rateMinTokens = 256
	// rateOutlier bounds how far one sample may stand below the present estimate: a single hang must not condemn a backend,
	// a lasting slowdown still shows within a few samples.
	rateOutlier = 16
	// rateDoubt is what a prefill slower than the estimate counts among several nodes, against 1 for a faster one: it may have
	// waited for another node's, which nobody tells from a slow engine, while no engine is ever faster than it is.
	rateDoubt = 0.1
	// rateGuess is rateDoubt where the work in front is a guess from placements.
	rateGuess = 0.01
)

// rateSums estimates tokens/s as a ratio of decayed sums, which weighs a sample by its duration: long prefills say most.
type rateSums struct {
	tokens, seconds float64
}

// add books a sample; doubt is what it counts if it is slower than the present estimate.
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

// fleetRate is the prior for backends without samples of their own, learned over all of them.
type fleetRate struct {
	mu    sync.Mutex
	sums  rateSums // own measurements
	peers rateSums // the other nodes', over all backends
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

// replace takes out what peers measured of a backend before, and takes in what they have now.
func (f *fleetRate) replace(before, now rateSums) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = rateSums{tokens: max(f.peers.tokens-before.tokens, 0) + now.tokens, seconds: max(f.peers.seconds-before.seconds, 0) + now.seconds}
	if f.peers.seconds > 0 {
		f.bits.Store(math.Float64bits(f.sums.plus(f.peers).estimate(f.load())))
	}
}

// OwnRate returns what this node has measured of a backend's prefill rate, in tokens/s, and how much that is worth: the
// seconds of prefill behind it, faded. Weight 0: nothing. For peers: the average of all nodes' rates by their weights.
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

// SetPeerRate replaces what all other nodes together have measured of a backend's prefill rate: the average of their rates by
// weight, and the sum of their weights. It is averaged with the own measurements by weight; weight 0 takes it out. The backend
// need not be in the view yet.
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

// combine makes the rate of own and others' measurements, 0 if there are none; the lock must be held.
func (s *slot) combine(prior float64) {
	all, rate := s.rates.plus(s.peerRates), 0.0
	if all.seconds > 0 {
		rate = all.estimate(prior)
	}
	s.scant.Store(all.seconds < ratePrior)
	s.rate.Store(math.Float64bits(rate))
}

// learnRate books one prefill of the slot: tokens computed in seconds of the engine's own time for it. It counts doubt if it is
// slower than what is known of the backend, or of the fleet.
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

// freshen forgets a rate that stands on little and that nothing corrects. A backend that was measured once or twice while the fleet's rate
// was a guess passes for slow, so that nothing is sent there at light load, and would for ever. One that is slow shows it in as many
// prompts as scantEvidence holds.
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
	// defaultBytesPerToken is what byte-pair vocabularies give for English and code.
	defaultBytesPerToken = 4.0
	// maxModels bounds the per-model estimates; the models beyond share one.
	maxModels = 256
	// bytesWindow is the memory of an estimate in tokens: a few dozen long prompts.
	bytesWindow = 1 << 20
	// bytesPrior is the weight of the prior in tokens.
	bytesPrior = 1 << 11
	// The bounds of a believable estimate: below 1 the counts are not of this prompt, above 16 likewise (images by hash).
	minBytesPerToken, maxBytesPerToken = 1.0, 16.0
)

// modelStat is the learned bytes per token of one model's prompts.
type modelStat struct {
	bits          atomic.Uint64
	mu            sync.Mutex
	bytes, tokens float64

	further      atomic.Uint64 // see cachedFurther; float64 bits
	found, fresh float64       // tokens behind a match that were cached all the same, of so many; decayed
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
	// furtherWindow is the memory of what is found behind matches, in tokens.
	furtherWindow = 1 << 20
	// furtherPrior is the weight of finding nothing, in tokens: a few follow-ups.
	furtherPrior = 1 << 13
)

// cachedFurther returns the share of a prompt behind the match of its conversation that its holder is expected to have all
// the same: the answers it gave, which no router hashes before they come back in a prompt.
func (m *modelStat) cachedFurther() float64 { return math.Float64frombits(m.further.Load()) }

// learnFurther books a follow-up of prompt tokens with a match of held, of which cached were found. A count short of the
// match is the tree's affair.
func (m *modelStat) learnFurther(held, cached, prompt float64) {
	if cached < held || cached > prompt || prompt <= held {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found += cached - held
	m.fresh += prompt - held
	if m.fresh > furtherWindow {
		m.found /= 2
		m.fresh /= 2
	}
	m.further.Store(math.Float64bits(m.found / (m.fresh + furtherPrior)))
}

// modelStats maps model names to their estimates: copy on write, so that the lookup of a Pick neither locks nor allocates.
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
	next := make(map[string]*modelStat, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	s := newModelStat()
	next[string(name)] = s
	m.byName.Store(&next)
	return s
}
