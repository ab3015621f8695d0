// Package engine emulates an LLM inference engine: paged prefix cache, continuous batching, chunked
// prefill, finite KV memory and a waiting queue, with invented text instead of a neural network.
//
// Model is a pure state machine: no clock, goroutine, randomness or I/O. Server runs one Model on
// the wall clock behind the HTTP interfaces of vLLM, SGLang, OpenAI and Anthropic; the fleet
// simulator runs many in virtual time. DESIGN.md has the rules and the limitations.
package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Config is the size and speed of the engine. Zero fields take the defaults, about one current
// accelerator that serves a mid-size model. The tags are those of command line flags.
type Config struct {
	KVTokens     int           `name:"kv-tokens" placeholder:"N" group:"engine" help:"Tokens its KV memory holds, of prompts and outputs together. Default 1500000."`
	BlockTokens  int           `name:"block-tokens" placeholder:"N" group:"engine" help:"Tokens of one page of KV memory, at most 4096. Default 16."`
	MaxRunning   int           `name:"max-running" placeholder:"N" group:"engine" help:"Sequences it runs at once. Default 64."`
	PrefillRate  float64       `name:"prefill-rate" placeholder:"N" group:"engine" help:"Prompt tokens it computes per second. Default 10000."`
	ChunkTokens  int           `name:"chunk" placeholder:"N" group:"engine" help:"Prompt tokens it computes in one step at most. Default 512."`
	DecodeStep   time.Duration `name:"decode-step" placeholder:"DURATION" group:"engine" help:"Length of a step that decodes one sequence. Default 20ms."`
	AdapterSlots int           `name:"adapter-slots" placeholder:"N" group:"engine" help:"LoRA adapters that one batch may use. Default: any number, at no cost."`
	AdapterLoad  time.Duration `name:"adapter-load" placeholder:"DURATION" group:"engine" help:"Time for which all sequences wait while an adapter is loaded into a slot. Default 0."`
	DecodeGrowth float64       `name:"decode-growth" placeholder:"X" group:"engine" help:"A step with a full batch takes (1+X) times as long. Default 0."`
}

// MaxBlockTokens bounds Config.BlockTokens: the model keeps one counter per token of a block.
const MaxBlockTokens = 4096

// ErrConfig is wrapped by every error about a Config or ServerConfig.
var ErrConfig = errors.New("engine: bad configuration")

func (c Config) withDefaults() (Config, error) {
	c.KVTokens = cmp.Or(c.KVTokens, 1_500_000)
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.MaxRunning = cmp.Or(c.MaxRunning, 64)
	c.PrefillRate = cmp.Or(c.PrefillRate, 10_000)
	c.ChunkTokens = cmp.Or(c.ChunkTokens, 512)
	c.DecodeStep = cmp.Or(c.DecodeStep, 20*time.Millisecond)
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
	case c.AdapterSlots < 0 || c.AdapterLoad < 0:
		return c, fmt.Errorf("%w: %d adapter slots, loaded in %v", ErrConfig, c.AdapterSlots, c.AdapterLoad)
	case !(c.DecodeGrowth >= 0) || math.IsInf(c.DecodeGrowth, 0):
		return c, fmt.Errorf("%w: decode growth %v", ErrConfig, c.DecodeGrowth)
	}
	return c, nil
}

// Job is one request. The caller must not change its input fields or the slices between Submit and
// the Finished or Refused event, Cancel or Reset; then it may be reused.
type Job struct {
	// Keys name the full blocks of the prompt, root to leaf. Keys[i] stands for the first
	// (i+1)*KeyTokens tokens: equal keys must mean equal whole prefixes.
	Keys []uint64
	// OutKeys continue Keys with the blocks that the output completes, including the one that
	// straddles prompt and output. If nil, or if Keys lacks a full block of the prompt, the output
	// is never shared.
	OutKeys []uint64
	// KeyTokens is the number of tokens of one key.
	KeyTokens int
	// PromptTokens is at least 1. With OutputTokens 0 (embedding, scoring) the job ends with its
	// prefill.
	PromptTokens, OutputTokens int
	// Loaded leading tokens of the prompt have their KV cache from another engine: they need memory,
	// but no computation at the first admission. The last token is always computed.
	Loaded int
	// Adapter names the LoRA adapter; 0: none.
	Adapter uint64
	Session string // that the changes of the cache name
	// Watch asks for a Tokens event per generated token. The model then simulates every step
	// singly.
	Watch bool
	User  any

	// Cached is the number of prompt tokens not computed at the first admission: found in the cache
	// or, as vLLM counts them too, loaded.
	Cached int
	// Times since the start of the model. For a job without output FirstToken is the end of the
	// prefill.
	Submitted, Admitted, FirstToken, Finished time.Duration

	seq sequence
}

type Kind uint8

// Events in the order in which a job may see them. Preempted is followed by another Admitted.
const (
	Admitted   Kind = iota + 1
	FirstToken      // prefill done, first output token generated; Tokens = 1
	Tokens          // another output token (watched jobs only); Tokens = 1
	Preempted       // lost its KV memory to older jobs; waits at the head of the queue for recomputation
	Finished
	Refused // can never run: larger than the KV memory, or without a prompt
)

// Event is one event of a job.
type Event struct {
	Kind   Kind
	Job    *Job
	At     time.Duration
	Tokens int
}

// Model is the engine as a state machine. Not safe for concurrent use. Times count from its start;
// a time earlier than the latest one seen counts as that one.
type Model struct {
	cfg     Config
	now     time.Duration
	slow    float64 // factor on every step
	cache   cache
	private int // tokens of allocated blocks that are not in the cache

	waiting  []*Job        // first in, first out, but a preempted job returns to the front
	refused  []*Job        // reported by the next Advance
	running  []*Job        // in order of admission: the last one is preempted first
	prefill  []*Job        // subset of running: still computing the prompt
	ready    []*Job        // subset of running: prefill ends with the present step
	decoding int           // number of running jobs that generate
	watched  int           // number of decoding jobs that want an event per token
	adapters []uint64      // loaded, least recently admitted first
	loading  time.Duration // of adapters, before the step that begins
	blocked  bool          // the head of the queue found no memory, and none was freed since

	step    stretch
	begun   int64   // decode steps begun and charged
	nextEnd int64   // value of begun at which the next decoding job ends
	phase   []int32 // decoding jobs by the step (mod BlockTokens) at which they need another block

	scratch []uint64
	stats   Stats
	busy    bool // inside Advance
}

// Stats are totals since the start and present state, in tokens unless noted.
type Stats struct {
	Running  int `json:"running"` // jobs
	Waiting  int `json:"waiting"`
	Decoding int `json:"decoding"`

	KVTokens    int `json:"kv_tokens"`    // capacity
	KVUsed      int `json:"kv_used"`      // allocated: shared and private, pinned or not
	KVShared    int `json:"kv_shared"`    // part of KVUsed that is in the prefix cache
	KVEvictable int `json:"kv_evictable"` // part of KVShared that no running job pins

	Submitted int64 `json:"submitted"` // jobs
	Finished  int64 `json:"finished"`
	Cancelled int64 `json:"aborted"`
	Refused   int64 `json:"refused"`
	Preempted int64 `json:"preempted"`

	PromptTokens  int64 `json:"prompt_tokens"`  // of admitted jobs, each counted once
	CachedTokens  int64 `json:"cached_tokens"`  // part of PromptTokens found in the cache
	LoadedTokens  int64 `json:"loaded_tokens"`  // part of PromptTokens that came from another engine
	PrefillTokens int64 `json:"prefill_tokens"` // computed by prefill, including recomputation after preemption
	OutputTokens  int64 `json:"output_tokens"`  // generated
	EvictedTokens int64 `json:"evicted_tokens"`
	AdapterLoads  int64 `json:"adapter_loads"`

	Steps       int64         `json:"steps"`
	Busy        time.Duration `json:"busy_ns"`         // total length of all steps
	PrefillBusy time.Duration `json:"prefill_busy_ns"` // of it for prefill: without other work in the same steps

	// Of jobs with a first token: how many, and their prompt tokens that were computed.
	FirstTokens   int64 `json:"first_tokens"`
	FirstComputed int64 `json:"first_computed"`

	// Of finished jobs, as vLLM sums them: prompt tokens that were not cached, and times from admission to first token.
	ComputedTokens int64         `json:"computed_tokens"`
	PrefillTime    time.Duration `json:"prefill_time_ns"`
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

// Submit queues j. The next Advance reports Refused for a job that can never run. Submit panics if
// the model already holds j.
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
	m.waiting = append(m.waiting, j)
	if !m.blocked && len(m.running) < m.cfg.MaxRunning {
		m.cut(m.now)
	}
}

func (m *Model) fits(j *Job) bool {
	if j.PromptTokens < 1 || j.OutputTokens < 0 || (len(j.Keys) > 0 && j.KeyTokens < 1) ||
		j.PromptTokens > m.cfg.KVTokens || j.OutputTokens > m.cfg.KVTokens {
		return false
	}
	// The last token generated is never fed back, so it needs no KV memory.
	need := m.roundUp(j.PromptTokens + max(j.OutputTokens-1, 0))
	if j.KeyTokens > 0 && j.KeyTokens%m.cfg.BlockTokens != 0 {
		need += m.cfg.BlockTokens
	}
	return need <= m.cfg.KVTokens
}

// Cancel removes j in any state and releases its memory; its computed blocks stay in the cache. It
// emits no event. Advance to now first, or Cancel may remove a job that had finished by then. It
// returns false if the model does not hold j.
func (m *Model) Cancel(j *Job, now time.Duration) bool {
	m.seen(now)
	switch j.seq.state {
	case stateNone:
		return false
	case stateRefused:
		m.refused = remove(m.refused, j)
		m.stats.Refused++
	case stateWaiting:
		m.blocked = m.blocked && m.waiting[0] != j
		m.waiting = remove(m.waiting, j)
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

// Next returns the time of the next event, or false if none comes before the next Submit. Every
// other method invalidates the result.
func (m *Model) Next() (time.Duration, bool) {
	switch {
	case len(m.refused) > 0:
		return m.refused[0].Submitted, true
	case m.step.steps > 0:
		return m.step.end(), true
	case len(m.waiting) > 0:
		return max(m.step.start, m.waiting[0].Submitted), true
	}
	return 0, false
}

// Advance runs the engine until now, inclusive, and emits the events in order. A stretch of pure
// decoding costs the same at any length unless a job is watched. emit may be nil and must not call
// the model.
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
		if len(m.waiting) == 0 {
			return
		}
		at := max(m.step.start, m.waiting[0].Submitted)
		if at > m.now {
			return
		}
		m.schedule(at, at, emit)
	}
}

// Cached returns how many leading tokens of this prefix the engine would serve from cache if a
// longer prompt were admitted at the latest time seen. It changes nothing, not even the eviction
// order.
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

// Coming is Cached once the model has computed all prompts that it holds now, if it evicts nothing.
func (m *Model) Coming(keys []uint64, keyTokens int) int {
	if keyTokens < 1 {
		return 0
	}
	n := m.Cached(keys, keyTokens) / keyTokens
	for _, jobs := range [2][]*Job{m.prefill, m.waiting} {
		for _, j := range jobs {
			for j.KeyTokens == keyTokens && n < min(len(j.Keys), len(keys)) && j.Keys[n] == keys[n] {
				n++
			}
		}
	}
	return n * keyTokens
}

// Prefilling returns the tokens that admitted jobs have yet to compute, without those of the present
// step.
func (m *Model) Prefilling() (tokens int) {
	for _, j := range m.prefill {
		tokens += j.seq.context - j.seq.done
	}
	return tokens
}

// Uncached returns the prompt tokens that it has yet to compute for all jobs, without those of the
// present step.
func (m *Model) Uncached() int {
	tokens := m.Prefilling()
	for _, j := range m.waiting {
		cached := m.CachedFor(j)
		if j.seq.generated == 0 {
			cached = max(cached, j.Loaded)
		}
		tokens += j.PromptTokens + j.seq.generated - cached
	}
	return tokens
}

// CachedFor returns what Job.Cached would be if j were admitted now. The last block of a prompt is
// always computed, because its logits are needed.
func (m *Model) CachedFor(j *Job) int {
	if j.KeyTokens < 1 || j.PromptTokens < 1 {
		return 0
	}
	keys := j.Keys[:min(len(j.Keys), j.PromptTokens/j.KeyTokens)]
	return m.usable(m.Cached(keys, j.KeyTokens), j.PromptTokens)
}

// usable returns how many cached tokens a prefill of total tokens can use: whole blocks, without
// the last token.
func (m *Model) usable(cached, total int) int {
	last := total - 1
	return min(cached, last-last%m.cfg.BlockTokens)
}

// Slow multiplies the length of every step from the next one on; 1 is normal. It panics unless
// factor is positive.
func (m *Model) Slow(factor float64, now time.Duration) {
	if !(factor > 0) || math.IsInf(factor, 0) {
		panic("engine: slow factor must be positive")
	}
	m.seen(now)
	m.cut(m.now)
	m.slow = factor
}

// Clear empties the cache. Running jobs keep their output and are recomputed, as after a
// preemption.
func (m *Model) Clear(now time.Duration) {
	m.seen(now)
	m.settle(m.now)
	for len(m.running) > 0 {
		m.preempt()
	}
	if m.step.steps > 0 {
		m.step = stretch{start: m.now}
	}
	log := m.cache.journal
	m.cache.journal = nil
	m.cache.evict(m.cache.tokens)
	m.cache.journal = log
	log.cleared()
	m.blocked = false
}

// Reset restarts the engine with an empty cache and returns the jobs it lost, running ones first;
// they get no event. Totals continue.
func (m *Model) Reset(now time.Duration) []*Job {
	m.Clear(now) // moves the running jobs to the head of the queue
	lost := slices.Concat(m.waiting, m.refused)
	m.waiting, m.refused = nil, nil
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
	s.Running, s.Waiting, s.Decoding = len(m.running), len(m.waiting), m.decoding
	s.KVTokens, s.KVUsed, s.KVShared, s.KVEvictable = m.cfg.KVTokens, m.used(), m.cache.tokens, m.cache.evictable
	s.EvictedTokens = m.cache.evicted
	return s
}

func remove(jobs []*Job, j *Job) []*Job {
	if i := slices.Index(jobs, j); i >= 0 {
		return slices.Delete(jobs, i, i+1)
	}
	return jobs
}

func (m *Model) seen(now time.Duration) { m.now = max(m.now, now) }

func (m *Model) used() int { return m.cache.tokens + m.private }

func (m *Model) free() int { return m.cfg.KVTokens - m.used() }

func (m *Model) roundUp(tokens int) int {
	b := m.cfg.BlockTokens
	return (tokens + b - 1) / b * b
}
