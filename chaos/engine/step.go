package engine

import (
	"math"
	"slices"
	"time"
)

const never = math.MaxInt64

type jobState uint8

const (
	stateNone jobState = iota
	stateRefused
	stateWaiting
	statePrefill
	stateReady
	stateDecode
)

type sequence struct {
	state     jobState
	unshared  bool // a key did not fit below its predecessor: publish no more
	generated int  // output up to the last admission; while decoding, up to the first decode step
	context   int  // tokens to prefill: the prompt and, after a preemption, the output so far
	done      int
	base      int
	moved     int // allocated by the job, now held through the cache
	held      int
	node      *node
	start     int64
	end       int64
	phase     int
}

// stretch is a run of equal steps without a scheduling decision: one step, or many that only
// decode. A step's memory is charged when it begins; settle charges many steps at once with the
// same result.
type stretch struct {
	start   time.Duration
	dur     time.Duration
	steps   int64
	settled int64
}

func (s *stretch) end() time.Duration { return s.start + time.Duration(s.steps)*s.dur }

// schedule begins a stretch at time t in the order of vLLM's scheduler: memory for the running
// sequences (preempting the youngest if short), then prefill first come, first served while the
// step has tokens left. It ignores jobs submitted after until: between two steps that is just
// before t.
func (m *Model) schedule(t, until time.Duration, emit func(Event)) {
	preempted := false
	for m.decoding > 0 && m.growth(1) > m.free()+m.cache.evictable {
		j := m.preempt()
		emit(Event{Kind: Preempted, Job: j, At: t})
		preempted = true
	}
	m.step = stretch{start: t}
	decoding := m.decoding
	if decoding > 0 {
		m.charge(1)
		if m.cache.journal.eager() {
			m.publishOutput()
		}
	}
	budget := m.cfg.ChunkTokens
	for budget > 0 && len(m.prefill) > 0 {
		m.compute(m.prefill[0], &budget)
	}
	m.loading = 0
	for budget > 0 && !preempted {
		next := m.admissible(until)
		if next < 0 {
			break
		}
		j := m.waiting[next]
		copy(m.waiting[1:next+1], m.waiting[:next]) // jobs that wait for an adapter's slot keep their order
		m.waiting[0] = j
		if !m.admit(j) {
			m.blocked = true
			break
		}
		m.load(j.Adapter)
		if j.seq.generated == 0 {
			j.Admitted = t
		}
		emit(Event{Kind: Admitted, Job: j, At: t, Tokens: j.seq.done})
		m.compute(j, &budget)
	}
	prefilled := m.cfg.ChunkTokens - budget
	m.cache.journal.step(prefilled > 0, decoding > 0)
	if decoding == 0 && prefilled == 0 {
		return
	}
	m.stats.PrefillBusy += time.Duration(math.Round(float64(prefilled) / m.cfg.PrefillRate * float64(time.Second) * m.slow))
	m.step.steps, m.step.settled = 1, 1
	m.step.dur = m.stepTime(decoding, prefilled) + m.loading
	if prefilled == 0 && !preempted && m.watched == 0 && m.cache.journal == nil {
		m.step.steps = m.decodeSteps(t)
	}
}

// admissible returns the first waiting job that may be admitted if there is memory for it, -1 if there is none. Others wait for the
// slot of an adapter.
func (m *Model) admissible(until time.Duration) int {
	if m.blocked || len(m.running) >= m.cfg.MaxRunning {
		return -1
	}
	room := m.cfg.AdapterSlots == 0 || m.victim() >= 0
	for i, j := range m.waiting {
		switch {
		case j.Submitted > until:
			return -1
		case room || j.Adapter == 0 || slices.Contains(m.adapters, j.Adapter):
			return i
		}
	}
	return -1
}

func (m *Model) stepTime(decoding, prefilled int) time.Duration {
	var d float64
	if decoding > 0 {
		d = float64(m.cfg.DecodeStep) * (1 + m.cfg.DecodeGrowth*float64(decoding)/float64(m.cfg.MaxRunning))
	}
	d = max(d, float64(prefilled)/m.cfg.PrefillRate*float64(time.Second))
	return max(time.Duration(math.Round(d*m.slow)), 1)
}

// decodeSteps returns how many steps from the present one are alike: until a sequence ends, memory
// runs short or an admissible job arrives.
func (m *Model) decodeSteps(t time.Duration) int64 {
	k := m.nextEnd - m.begun + 1
	if next := m.admissible(never); next >= 0 {
		k = min(k, max(int64((m.waiting[next].Submitted-t)/m.step.dur)+1, 1))
	}
	room := m.free() + m.cache.evictable
	if m.growth(k-1) <= room {
		return k
	}
	block := int64(m.cfg.BlockTokens)
	cycles := int64(room) / (block * int64(m.decoding))
	room -= int(cycles*block) * m.decoding
	k = 1 + cycles*block
	for at := m.begun % block; ; at = (at + 1) % block {
		if room -= int(m.phase[at]) * int(block); room < 0 {
			return k
		}
		k++
	}
}

func (m *Model) growth(n int64) int {
	block := int64(m.cfg.BlockTokens)
	blocks := n / block * int64(m.decoding)
	for i := range n % block {
		blocks += int64(m.phase[(m.begun+i)%block])
	}
	return int(blocks * block)
}

// charge begins n decode steps and allocates their memory, evicting as needed. The caller has
// checked that it suffices.
func (m *Model) charge(n int64) {
	m.private += m.growth(n)
	m.begun += n
	m.makeRoom()
}

func (m *Model) makeRoom() {
	m.cache.journal.makeRoom(m.free())
	if over := -m.free(); over > 0 {
		m.cache.evict(over)
	}
}

// settle charges the steps that began by t and counts those that ended, except the last step, which
// finishStep ends. It changes no decision, so readers may call it at any time.
func (m *Model) settle(t time.Duration) {
	s := &m.step
	if s.steps == 0 || t < s.start {
		return
	}
	over := int64((t - s.start) / s.dur)
	if n := min(over+1, s.steps) - s.settled; n > 0 {
		s.settled += n
		m.charge(n)
	}
	if n := min(over, s.steps-1); n > 0 {
		m.count(n)
		s.start += time.Duration(n) * s.dur
		s.steps -= n
		s.settled -= n
	}
}

func (m *Model) count(n int64) {
	m.stats.Steps += n
	m.stats.Busy += time.Duration(n) * m.step.dur
	m.stats.OutputTokens += n * int64(m.decoding)
}

// cut ends the present stretch with the step that runs at t, because the next one may differ.
func (m *Model) cut(t time.Duration) {
	m.settle(t)
	m.step.steps = m.step.settled
}

func (m *Model) finishStep(emit func(Event)) {
	at := m.step.end()
	m.settle(at)
	m.count(1)
	m.step = stretch{start: at}
	if m.decoding > 0 && (m.watched > 0 || m.begun >= m.nextEnd) {
		m.nextEnd = never
		kept := m.running[:0]
		for _, j := range m.running {
			if j.seq.state == stateDecode && m.token(j, at, emit) {
				continue
			}
			kept = append(kept, j)
		}
		clear(m.running[len(kept):])
		m.running = kept
	}
	ready := m.ready
	m.ready = m.ready[:0]
	for i, j := range ready {
		ready[i] = nil
		m.prefilled(j, at, emit)
	}
}

func (m *Model) token(j *Job, at time.Duration, emit func(Event)) (ended bool) {
	if j.Watch {
		emit(Event{Kind: Tokens, Job: j, At: at, Tokens: 1})
	}
	if j.seq.end > m.begun {
		m.nextEnd = min(m.nextEnd, j.seq.end)
		return false
	}
	m.finish(j, at, emit)
	return true
}

func (m *Model) finish(j *Job, at time.Duration, emit func(Event)) {
	m.release(j)
	j.seq = sequence{}
	j.Finished = at
	m.stats.Finished++
	m.stats.ComputedTokens += int64(j.PromptTokens - j.Cached)
	m.stats.PrefillTime += j.FirstToken - j.Admitted
	emit(Event{Kind: Finished, Job: j, At: at})
}

func (m *Model) prefilled(j *Job, at time.Duration, emit func(Event)) {
	s := &j.seq
	if s.generated == 0 { // not again after a preemption
		m.stats.FirstTokens++
		m.stats.FirstComputed += int64(j.PromptTokens - j.Cached)
	}
	switch {
	case j.OutputTokens == 0:
		j.FirstToken = at
	case s.generated == 0:
		j.FirstToken = at
		emit(Event{Kind: FirstToken, Job: j, At: at, Tokens: 1})
	case j.Watch:
		emit(Event{Kind: Tokens, Job: j, At: at, Tokens: 1})
	}
	if j.OutputTokens > 0 {
		s.generated++
		m.stats.OutputTokens++
	}
	if s.generated >= j.OutputTokens {
		m.running = remove(m.running, j)
		m.finish(j, at, emit)
		return
	}
	s.state = stateDecode
	s.start = m.begun
	s.end = m.begun + int64(j.OutputTokens-s.generated)
	// Decode step b writes token context+b-start, which opens a block when it is a whole number of
	// blocks past base.
	block := int64(m.cfg.BlockTokens)
	s.phase = int(((s.start+int64(s.base)-int64(s.context))%block + block) % block)
	m.phase[s.phase]++
	m.decoding++
	if j.Watch {
		m.watched++
	}
	m.nextEnd = min(m.nextEnd, s.end)
}

// admit looks up the head of the queue in the cache and allocates its whole context; false if
// memory is short.
func (m *Model) admit(j *Job) bool {
	m.publishOutput()
	s := &j.seq
	s.context = j.PromptTokens + s.generated
	n, within, total, unlocked := m.cache.match(m.keys(j, s.context), j.KeyTokens)
	base := total * j.KeyTokens
	need := m.roundUp(s.context - base)
	if need > m.free()+m.cache.evictable-unlocked {
		return false
	}
	m.waiting = m.waiting[1:]
	s.node, s.held, s.base, s.moved = m.cache.acquire(n, within), total, base, 0
	m.private += need
	m.makeRoom()
	s.done = m.usable(base, s.context)
	m.cache.journal.admitted(j)
	if s.generated == 0 {
		m.stats.PromptTokens += int64(j.PromptTokens)
		m.stats.CachedTokens += int64(s.done)
		if loaded := min(j.Loaded, j.PromptTokens-1) - s.done; loaded > 0 {
			s.done += loaded
			m.stats.LoadedTokens += int64(loaded)
		}
		j.Cached = s.done
	}
	s.state = statePrefill
	m.running = append(m.running, j)
	m.prefill = append(m.prefill, j)
	return true
}

// compute spends budget on the oldest prefill. Its blocks are shared from this step on, so that a
// job admitted in the same step finds them.
func (m *Model) compute(j *Job, budget *int) {
	s := &j.seq
	n := min(*budget, s.context-s.done)
	*budget -= n
	s.done += n
	m.stats.PrefillTokens += int64(n)
	m.publish(j, s.done)
	if s.done == s.context {
		s.state = stateReady
		m.prefill = remove(m.prefill, j)
		m.ready = append(m.ready, j)
	}
}

func (m *Model) computed(j *Job) int {
	if j.seq.state == stateDecode {
		return j.seq.context + int(m.begun-j.seq.start)
	}
	return j.seq.done
}

func (m *Model) generatedNow(j *Job) int {
	if j.seq.state != stateDecode {
		return j.seq.generated
	}
	n := int(m.begun - j.seq.start)
	if m.step.steps > 0 && n > 0 {
		n--
	}
	return j.seq.generated + n
}

func (m *Model) allocated(j *Job) int {
	tokens := j.seq.context
	if j.seq.state == stateDecode {
		tokens = m.computed(j)
	}
	return m.roundUp(tokens - j.seq.base)
}

func outKeys(j *Job) []uint64 {
	if j.KeyTokens < 1 || len(j.Keys) != j.PromptTokens/j.KeyTokens {
		return nil
	}
	return j.OutKeys
}

// keys returns the keys of the full blocks in the first tokens of j, prompt and output. The result
// is valid until the next call.
func (m *Model) keys(j *Job, tokens int) []uint64 {
	if j.KeyTokens < 1 {
		return nil
	}
	n := tokens / j.KeyTokens
	out := outKeys(j)
	if prompt := min(len(j.Keys), j.PromptTokens/j.KeyTokens); n <= prompt || len(out) == 0 {
		return j.Keys[:min(n, prompt)]
	}
	m.scratch = append(append(m.scratch[:0], j.Keys...), out[:min(n-len(j.Keys), len(out))]...)
	return m.scratch
}

// publish puts the full blocks in the first tokens of j into the cache. If another job has
// published a block meanwhile, j adopts that copy and frees its own.
func (m *Model) publish(j *Job, tokens int) {
	s := &j.seq
	if j.KeyTokens < 1 || s.unshared {
		return
	}
	out := outKeys(j)
	prompt := min(len(j.Keys), j.PromptTokens/j.KeyTokens)
	n := min(tokens/j.KeyTokens, prompt+len(out))
	from, adopted := s.held, 0
	for s.held < n {
		before := m.cache.tokens
		var run []uint64
		if s.held < prompt {
			run = j.Keys[s.held:min(n, prompt)]
		} else {
			run = out[s.held-prompt : n-prompt]
		}
		end, total := m.cache.extend(s.node, run, j.KeyTokens, prompt+len(out)-s.held)
		if total == 0 {
			s.unshared = true
			break
		}
		if m.cache.tokens == before {
			adopted += total
		}
		s.node = end
		s.held += total
		s.moved += total * j.KeyTokens
		m.private -= total * j.KeyTokens
	}
	m.cache.journal.stored(j, from, adopted)
}

// publishOutput puts the blocks that outputs have filled into the cache.
func (m *Model) publishOutput() {
	for _, j := range m.running {
		if j.seq.state == stateDecode {
			m.publish(j, m.computed(j))
		}
	}
}

// unpublished returns how many of keys[from:] j has generated but not yet published; blocks of
// output are published lazily.
func (m *Model) unpublished(j *Job, keys []uint64, keyTokens, from int) int {
	s := &j.seq
	if s.state != stateDecode || s.unshared || j.KeyTokens != keyTokens {
		return 0
	}
	n := 0
	own := outKeys(j)
	own = own[:max(min(len(own), m.computed(j)/keyTokens-len(j.Keys)), 0)]
	for at := from - len(j.Keys); at >= 0 && at < len(own) && from+n < len(keys) && own[at] == keys[from+n]; at++ {
		n++
	}
	return n
}

// release publishes what a running job has computed and frees all it holds. The caller removes it
// from running.
func (m *Model) release(j *Job) {
	m.publish(j, m.computed(j))
	s := &j.seq
	m.private -= m.allocated(j) - s.moved
	m.cache.release(s.node)
	s.node = nil
	m.blocked = false
	switch s.state {
	case statePrefill:
		m.prefill = remove(m.prefill, j)
	case stateReady:
		m.ready = remove(m.ready, j)
	case stateDecode:
		m.phase[s.phase]--
		m.decoding--
		if j.Watch {
			m.watched--
		}
		if m.decoding == 0 {
			m.nextEnd = never
		}
	}
}

// preempt takes the memory of the youngest running job and returns that job to the head of the
// queue.
func (m *Model) preempt() *Job {
	last := len(m.running) - 1
	j := m.running[last]
	m.running[last] = nil
	m.running = m.running[:last]
	generated := m.generatedNow(j)
	m.release(j)
	j.seq = sequence{state: stateWaiting, generated: generated}
	m.waiting = slices.Insert(m.waiting, 0, j)
	m.stats.Preempted++
	return j
}
