// Package engine is an emulated LLM inference engine: paged prefix cache, continuous batching, chunked prefill, finite KV
// memory and a waiting queue, with invented text in place of a neural network.
//
// Model is the engine as a pure state machine: no clock, goroutine, randomness or I/O, time is a parameter. Server runs one
// Model on the wall clock behind the HTTP interfaces of vLLM, SGLang, OpenAI and Anthropic; the fleet simulator runs many of
// them in virtual time. Both therefore agree on what is cached, which is the point of the package.
//
// It does not model tensor or pipeline parallelism, speculative decoding, KV offload, prefill/decode split, scheduling
// priorities or the content of prompts. DESIGN.md gives the rules in full.
package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config says how large and how fast the engine is. Zero fields take the defaults, which are about one current accelerator
// serving a mid-size model.
type Config struct {
	KVTokens     int           // KV memory in tokens, prompts and outputs together; default 1,500,000
	BlockTokens  int           // tokens of one page of KV memory; default 16; at most MaxBlockTokens
	MaxRunning   int           // sequences running at once; default 64
	PrefillRate  float64       // prompt tokens computed per second; default 10,000
	ChunkTokens  int           // prompt tokens computed in one step at most; default 512
	DecodeStep   time.Duration // a step that decodes one sequence; default 20 ms
	DecodeGrowth float64       // a full batch decodes in DecodeStep*(1+DecodeGrowth); default 0: constant
}

// MaxBlockTokens bounds Config.BlockTokens: the model keeps one counter per token of a block.
const MaxBlockTokens = 4096

// ErrConfig is wrapped by every error about a Config or ServerConfig.
var ErrConfig = errors.New("engine: bad configuration")

func (c Config) withDefaults() (Config, error) {
	if c.KVTokens == 0 {
		c.KVTokens = 1_500_000
	}
	if c.BlockTokens == 0 {
		c.BlockTokens = 16
	}
	if c.MaxRunning == 0 {
		c.MaxRunning = 64
	}
	if c.PrefillRate == 0 {
		c.PrefillRate = 10_000
	}
	if c.ChunkTokens == 0 {
		c.ChunkTokens = 512
	}
	if c.DecodeStep == 0 {
		c.DecodeStep = 20 * time.Millisecond
	}
	switch {
	case c.BlockTokens < 1 || c.BlockTokens > MaxBlockTokens:
		return c, fmt.Errorf("%w: block of %d tokens, want 1 to %d", ErrConfig, c.BlockTokens, MaxBlockTokens)
	case c.KVTokens < c.BlockTokens || c.KVTokens > math.MaxInt32:
		return c, fmt.Errorf("%w: KV memory of %d tokens, want %d (one block) to %d", ErrConfig, c.KVTokens, c.BlockTokens, math.MaxInt32)
	case c.MaxRunning < 1:
		return c, fmt.Errorf("%w: %d running sequences", ErrConfig, c.MaxRunning)
	case !(c.PrefillRate > 0) || math.IsInf(c.PrefillRate, 0):
		return c, fmt.Errorf("%w: prefill rate %v tokens/s", ErrConfig, c.PrefillRate)
	case c.ChunkTokens < 1:
		return c, fmt.Errorf("%w: prefill chunk of %d tokens", ErrConfig, c.ChunkTokens)
	case c.DecodeStep < 0:
		return c, fmt.Errorf("%w: decode step %v", ErrConfig, c.DecodeStep)
	case !(c.DecodeGrowth >= 0) || math.IsInf(c.DecodeGrowth, 0):
		return c, fmt.Errorf("%w: decode growth %v", ErrConfig, c.DecodeGrowth)
	}
	return c, nil
}

// Job is one request. The caller owns it and must not change the input fields, nor what the slices point to, between Submit
// and the Finished or Refused event, Cancel or Reset. After that it may be reused for another Submit.
type Job struct {
	// Keys name the full blocks of the prompt, root to leaf: Keys[i] stands for the first (i+1)*KeyTokens tokens, so that two
	// equal keys mean two equal whole prefixes. The model relies on it (it compares ends of runs, not every key).
	Keys []uint64
	// OutKeys continue Keys with the blocks that the output completes, the one that straddles prompt and output included.
	// May be nil: the output is then never shared. Ignored unless Keys holds every full block of the prompt.
	OutKeys []uint64
	// KeyTokens is the number of tokens one key stands for, the granularity at which this prompt is shared.
	KeyTokens int
	// PromptTokens is at least 1. OutputTokens may be 0 (embedding, scoring): the job ends with its prefill.
	PromptTokens, OutputTokens int
	// Watch asks for a Tokens event per generated token. One watched sequence makes the model go step by step.
	Watch bool
	// User belongs to the caller.
	User any

	// Cached is the number of prompt tokens served from cache at the first admission.
	Cached int
	// Times since the start of the model. FirstToken is the end of the prefill for a job without output.
	Submitted, Admitted, FirstToken, Finished time.Duration

	seq sequence
}

// Kind says what an Event reports.
type Kind uint8

// The kinds of events, in the order a job may see them. Preempted is followed by another Admitted.
const (
	Admitted   Kind = iota + 1 // left the queue; Tokens = tokens found in the cache
	FirstToken                 // prefill done, first output token there; Tokens = 1
	Tokens                     // another output token (watched jobs only); Tokens = 1
	Preempted                  // lost its KV memory to older jobs and waits at the head of the queue to be recomputed
	Finished                   // all output generated
	Refused                    // can never run: larger than the whole KV memory, or without a prompt
)

// Event is one thing that happened to a job.
type Event struct {
	Kind   Kind
	Job    *Job
	At     time.Duration
	Tokens int
}

// Model is the engine as a state machine. Not safe for concurrent use. Times are durations since its start and must not
// decrease from call to call; an earlier time counts as the latest one seen.
type Model struct {
	cfg     Config
	now     time.Duration
	slow    float64 // factor on every step
	cache   cache
	private int // tokens of allocated blocks that are not in the cache

	waiting  queue
	refused  []*Job // reported by the next Advance
	running  []*Job // in order of admission: the last one is preempted first
	prefill  []*Job // of running: still computing the prompt
	ready    []*Job // of running: prefill ends with the present step
	decoding int    // of running: generating
	watched  int    // of decoding: want an event per token
	blocked  bool   // the head of the queue found no memory; nothing was freed since

	step    stretch
	begun   int64   // decode steps begun and charged
	nextEnd int64   // value of begun at which the next decoding job ends
	phase   []int32 // decoding jobs by the step (mod BlockTokens) at which they need another block

	scratch []uint64
	stats   Stats
	busy    bool // inside Advance
}

// Stats are totals since the start and the state of the moment. Tokens unless said otherwise.
type Stats struct {
	Running, Waiting, Decoding int // jobs

	KVTokens    int // capacity
	KVUsed      int // allocated: shared and private, pinned or not
	KVShared    int // of KVUsed: in the prefix cache
	KVEvictable int // of KVShared: not pinned by a running job

	Submitted, Finished, Cancelled, Refused, Preempted int64 // jobs

	PromptTokens  int64 // of admitted jobs, each counted once
	CachedTokens  int64 // of PromptTokens: found in the cache
	PrefillTokens int64 // computed by prefill, recomputation after preemption included
	OutputTokens  int64 // generated
	EvictedTokens int64

	Steps       int64
	Busy        time.Duration // total length of all steps
	PrefillBusy time.Duration // PrefillTokens / PrefillRate
}

// NewModel returns an idle engine with an empty cache at time 0. The error wraps ErrConfig.
func NewModel(cfg Config) (*Model, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, slow: 1, nextEnd: never, phase: make([]int32, cfg.BlockTokens)}
	m.cache.init()
	return m, nil
}

// Config returns the configuration with its defaults filled in.
func (m *Model) Config() Config { return m.cfg }

// Submit queues j. A job that can never run is reported as Refused by the next Advance. Panics if j is in the model already.
func (m *Model) Submit(j *Job, now time.Duration) {
	if j.seq.state != stateNone {
		panic("engine: job submitted twice")
	}
	m.seen(now)
	j.Cached, j.Admitted, j.FirstToken, j.Finished = 0, 0, 0, 0
	j.Submitted = m.now
	j.seq = sequence{}
	m.stats.Submitted++
	if !m.fits(j) {
		j.seq.state = stateRefused
		m.refused = append(m.refused, j)
		return
	}
	j.seq.state = stateWaiting
	m.waiting.pushBack(j)
	if !m.blocked && len(m.running) < m.cfg.MaxRunning {
		m.cut(m.now)
	}
}

// fits reports whether j could run on an engine that runs nothing else.
func (m *Model) fits(j *Job) bool {
	if j.PromptTokens < 1 || j.OutputTokens < 0 || (len(j.Keys) > 0 && j.KeyTokens < 1) ||
		j.PromptTokens > m.cfg.KVTokens || j.OutputTokens > m.cfg.KVTokens {
		return false
	}
	// The last token generated is never fed back, so it needs no KV memory.
	need := m.roundUp(j.PromptTokens + max(j.OutputTokens-1, 0))
	if j.KeyTokens > 0 && j.KeyTokens%m.cfg.BlockTokens != 0 {
		need += m.cfg.BlockTokens // a cached prefix may end inside a block
	}
	return need <= m.cfg.KVTokens
}

// Cancel takes j out, whatever its state, and releases all it holds; what it has computed stays in the cache. No event. What
// was due before now is still to come: Advance to now first, lest a job be cancelled that has finished already. Reports
// false if j was not in the model (finished already, or never submitted).
func (m *Model) Cancel(j *Job, now time.Duration) bool {
	m.seen(now)
	switch j.seq.state {
	case stateNone:
		return false
	case stateRefused:
		m.refused = remove(m.refused, j)
		m.stats.Refused++
	case stateWaiting:
		m.blocked = m.blocked && m.waiting.front() != j
		m.waiting.remove(j)
		m.cut(m.now)
	default:
		m.cut(m.now)
		m.release(j)
		m.running = remove(m.running, j)
	}
	j.seq = sequence{}
	m.stats.Cancelled++
	return true
}

// Next returns the time at which something next happens. False if nothing will before the next Submit. Call it again after
// every other method.
func (m *Model) Next() (time.Duration, bool) {
	switch {
	case len(m.refused) > 0:
		return m.refused[0].Submitted, true
	case m.step.steps > 0:
		return m.step.end(), true
	case m.waiting.len() > 0:
		return max(m.step.start, m.waiting.front().Submitted), true
	}
	return 0, false
}

// Advance runs the engine until now, inclusive, and emits what happened, in order. Its cost does not depend on the length of
// a stretch in which sequences only decode, unless one of them is watched. emit may be nil; it must not call the model.
func (m *Model) Advance(now time.Duration, emit func(Event)) {
	if m.busy {
		panic("engine: Advance called from its own emit")
	}
	m.busy = true
	defer func() { m.busy = false }()
	if emit == nil {
		emit = func(Event) {}
	}
	m.seen(now)
	for len(m.refused) > 0 {
		j := m.refused[0]
		m.refused = remove(m.refused, j)
		m.stats.Refused++
		j.seq.state = stateNone
		emit(Event{Kind: Refused, Job: j, At: j.Submitted})
	}
	for {
		if m.step.steps > 0 {
			if m.step.end() > m.now {
				return
			}
			m.finishStep(emit)
			m.schedule(m.step.start, m.step.start-1, emit)
			continue
		}
		if m.waiting.len() == 0 {
			return
		}
		at := max(m.step.start, m.waiting.front().Submitted)
		if at > m.now {
			return
		}
		m.schedule(at, at, emit)
	}
}

// Cached is the truth about the cache as of the latest time seen: how many leading tokens of this prefix the engine would
// serve if a prompt that goes on after it were admitted now. It changes nothing, not even the order of eviction.
func (m *Model) Cached(keys []uint64, keyTokens int) int {
	if keyTokens < 1 {
		return 0
	}
	m.settle(m.now)
	_, _, n, _ := m.cache.match(keys, keyTokens)
	for _, j := range m.running {
		n += m.unpublished(j, keys, keyTokens, n)
	}
	return n * keyTokens
}

// CachedFor is Cached for a whole job: what Job.Cached would be if it were admitted now. At least the last block of a prompt
// is computed anew, as its logits are wanted.
func (m *Model) CachedFor(j *Job) int {
	if j.KeyTokens < 1 || j.PromptTokens < 1 {
		return 0
	}
	keys := j.Keys[:min(len(j.Keys), j.PromptTokens/j.KeyTokens)]
	return m.usable(m.Cached(keys, j.KeyTokens), j.PromptTokens)
}

// usable is the part of cached tokens that a prefill of total tokens can use: whole blocks, and not the last token.
func (m *Model) usable(cached, total int) int {
	last := total - 1
	return min(cached, last-last%m.cfg.BlockTokens)
}

// Slow multiplies the length of every step from the next one on; 1 is normal. Panics unless factor is positive.
func (m *Model) Slow(factor float64, now time.Duration) {
	if !(factor > 0) || math.IsInf(factor, 0) {
		panic("engine: slow factor must be positive")
	}
	m.seen(now)
	m.cut(m.now)
	m.slow = factor
}

// Clear empties the cache. Running jobs keep what they generated and are computed again, as after a preemption.
func (m *Model) Clear(now time.Duration) {
	m.seen(now)
	m.settle(m.now)
	for len(m.running) > 0 {
		m.preempt()
	}
	if m.step.steps > 0 {
		m.step = stretch{start: m.now}
	}
	m.cache.evict(m.cache.tokens)
	m.blocked = false
}

// Reset restarts the engine with an empty cache. The jobs it had are lost and returned, running ones first, in order; they
// see no event. Totals go on.
func (m *Model) Reset(now time.Duration) []*Job {
	var lost []*Job
	lost = append(lost, m.running...)
	m.Clear(now) // the running ones are at the head of the queue now
	lost = lost[:0]
	for m.waiting.len() > 0 {
		lost = append(lost, m.waiting.popFront())
	}
	lost = append(lost, m.refused...)
	m.refused = nil
	for _, j := range lost {
		j.seq = sequence{}
	}
	m.stats.Cancelled += int64(len(lost))
	return lost
}

// Stats returns totals and state as of the latest time seen.
func (m *Model) Stats() Stats {
	m.settle(m.now)
	s := m.stats
	s.Running, s.Waiting, s.Decoding = len(m.running), m.waiting.len(), m.decoding
	s.KVTokens, s.KVUsed, s.KVShared, s.KVEvictable = m.cfg.KVTokens, m.used(), m.cache.tokens, m.cache.evictable
	s.EvictedTokens = m.cache.evicted
	s.PrefillBusy = time.Duration(float64(s.PrefillTokens) / m.cfg.PrefillRate * float64(time.Second))
	return s
}

func (m *Model) seen(now time.Duration) { m.now = max(m.now, now) }

func (m *Model) used() int { return m.cache.tokens + m.private }

func (m *Model) free() int { return m.cfg.KVTokens - m.used() }

// roundUp returns tokens rounded up to whole blocks.
func (m *Model) roundUp(tokens int) int {
	b := m.cfg.BlockTokens
	return (tokens + b - 1) / b * b
}
