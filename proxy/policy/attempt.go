package policy

import (
	"grapevine/prefixtree"
)

// Outcome is what became of an attempt. Token counts are the engine's own; -1 means it did not say, which is not zero.
type Outcome struct {
	PromptTokens, CachedTokens, OutputTokens int
	Failed                                   Failure
	// Request names the request that failed, so that two failures of one can be told from those of two. 0: whatever it
	// failed of but Connect says nothing of the backend.
	Request uint64
	// FailedBefore are the backends on which the same request failed before, connections refused aside.
	FailedBefore []prefixtree.Backend
	RetryAfter   int64 // milliseconds for which the backend asked to be left alone, with Busy; 0 if it did not say
}

type stage uint8

const (
	idle stage = iota
	picked
	dispatched
	answering
	ended
)

// Attempt is one try of one request at one backend. It owns that try's share of the load ledger: Pick books it, End gives
// it back, once, whatever happened between. The zero value is ready; it may be reused after End, must not be copied while
// in use, and is for one goroutine at a time.
type Attempt struct {
	router   *Router
	slot     *slot
	model    *modelStat
	decision Decision
	trail    prefixtree.Trail
	hashes   []prefixtree.Hash // the caller's
	bytes    int               // prompt bytes
	charged  int64             // prefill tokens
	ahead    int64             // prefill tokens of peers on the backend when this was charged, reported or inferred
	placed   int64             // inferred.placed at that time
	inferred bool              // the load of others was inferred
	whole    bool              // Request.Whole
	held     float64           // tokens of the prompt believed cached by the tree
	followed bool              // these go beyond what is common property
	resident int64             // prompt and expected output tokens
	adapter  uint64
	work     *workMeter  // of the pool
	prefix   *prefixWork // of the popular prefix that the prompt begins with; nil for none
	interval float64     // seconds of engine time the prefill took; 0 unknown
	at       struct{ picked, dispatched, first prefixtree.Time }
	stage    stage
	trial    bool

	// The slot's line, under its lock.
	next, prev *Attempt
	inLine     bool
	front      int64           // charges of the whole requests in front when this one came
	since      prefixtree.Time // dispatch, or Pick before it
}

// Decision returns the choice and its receipt, valid until the next Pick with this attempt.
func (a *Attempt) Decision() *Decision { return &a.decision }

// Dispatched says that the request is on its way to the backend: only now is the placement recorded, since a request that
// was shed or moved elsewhere must not advertise a holder. Calls after the first do nothing.
func (a *Attempt) Dispatched(now prefixtree.Time) {
	if a.stage != picked {
		return
	}
	a.stage = dispatched
	a.at.dispatched = now
	a.slot.started(a, now)
	if len(a.hashes) > 0 {
		a.router.tree.Record(a.slot.id, a.hashes, now, &a.trail)
	}
	if a.adapter != 0 {
		a.slot.mu.Lock()
		a.slot.adapters.add(a.adapter)
		a.slot.mu.Unlock()
	}
}

// FirstToken says that the prefill is done: its charge is released and its duration noted. Calls after the first, or
// before Dispatched, do nothing.
func (a *Attempt) FirstToken(now prefixtree.Time) {
	if a.stage != dispatched {
		return
	}
	a.stage = answering
	a.at.first = now
	a.slot.prefilled(a, now, true)
	a.router.streamed.Store(true)
	a.slot.mu.Lock()
	// Engines prefill in order of arrival, so this prefill ran since the later of its dispatch and the last first token.
	since := max(a.at.dispatched, a.slot.lastFirst)
	a.slot.lastFirst = max(a.slot.lastFirst, now)
	if a.inferred {
		perBlock := float64(a.router.cfg.BlockBytes) / a.model.bytesPerToken()
		a.slot.correctInferred(a, perBlock, a.router.rate.load(), now)
	}
	a.slot.mu.Unlock()
	a.interval = float64(now-since) / 1000
	a.router.answered(a.slot, a.at.picked, now)
}

// Answers says that the answer has begun, but not that a first token was seen: its form is none that is understood. The prefill is done,
// how long it took is not known. Calls before Dispatched do nothing.
func (a *Attempt) Answers(now prefixtree.Time) {
	if a.stage == dispatched {
		a.slot.prefilled(a, now, false)
	}
}

// End releases everything the attempt still holds and learns from the outcome. It must be called exactly once per
// successful Pick; a second call is ignored and counted (Stats.DoubleEnds), and panics under the race and invariants
// build tags.
func (a *Attempt) End(o Outcome, now prefixtree.Time) {
	if a.stage == idle || a.stage == ended {
		a.misused()
		return
	}
	before := a.stage
	a.stage = ended
	a.slot.prefilled(a, now, false)
	a.slot.release(a)
	a.work.end(a.prefix, now)
	a.work, a.prefix = nil, nil
	switch {
	case o.Failed.blames():
		if a.router.failed(a.slot, &o, a.at.picked, now) && a.router.cfg.Failed != nil {
			a.router.cfg.Failed(a.slot.id, o.Failed, now)
		}
	case o.Failed == Busy:
		a.slot.busy(o.RetryAfter, now)
	case o.Failed != ClientGone && before != picked:
		a.router.answered(a.slot, a.at.picked, now)
	}
	if a.trial {
		a.slot.trial.Store(false)
	}
	a.router.outcomes[min(int(o.Failed), len(a.router.outcomes)-1)].Add(1)
	useless := o.Failed.blames() || o.Failed == Busy
	if before == dispatched && useless && a.router.retract != nil && len(a.hashes) > 0 {
		// The prompt was sent and never prefilled: take back what Record advertised.
		a.router.retract.Revert(a.slot.id, a.hashes, &a.trail)
	}
	if before != picked && !useless {
		a.learn(o, now)
	}
	a.hashes = nil
}

// learn corrects the estimators and the tree with the engine's own counts.
func (a *Attempt) learn(o Outcome, now prefixtree.Time) {
	if o.PromptTokens > 0 {
		a.model.learn(a.bytes, o.PromptTokens)
	}
	if a.at.first > 0 {
		a.router.hold.add(float64(now-a.at.first) / 1000)
	}
	if a.followed && o.PromptTokens > 0 && o.CachedTokens >= 0 {
		a.model.learnFurther(a.held, float64(o.CachedTokens), float64(o.PromptTokens))
	}
	uncached := float64(a.decision.UncachedTokens)
	if o.PromptTokens > 0 && o.CachedTokens >= 0 {
		uncached = float64(max(o.PromptTokens-o.CachedTokens, 0))
	}
	a.learnRate(uncached, o, now)
	if len(a.hashes) == 0 || o.CachedTokens < 0 && o.Failed != None && a.at.first == 0 {
		return // an engine that has said nothing at all may have computed nothing
	}
	blocks := -1 // not told: yet the prompt ages from the request's end
	if o.CachedTokens >= 0 {
		perToken := a.model.bytesPerToken()
		if o.PromptTokens > 0 && a.bytes > 0 {
			perToken = float64(a.bytes) / float64(o.PromptTokens)
		}
		// Half a block of rounding: the template's own tokens stand in no prompt byte.
		blocks = min(int(float64(o.CachedTokens)*perToken/float64(a.router.cfg.BlockBytes)+0.5), len(a.hashes))
	}
	lesson := a.router.tree.Learn(a.slot.id, a.hashes, &a.trail, blocks, now)
	if lesson.Amnesia && a.router.cfg.Forgot != nil {
		a.router.cfg.Forgot(a.slot.id)
	}
}

// learnRate learns from the time that a prefill of so many tokens has taken.
func (a *Attempt) learnRate(tokens float64, o Outcome, now prefixtree.Time) {
	interval, doubt := a.interval, a.doubt()
	if a.whole && a.at.first == 0 && o.Failed == None {
		interval, doubt = seconds(a.at.dispatched, now), a.router.wholeDoubt()
	}
	// Behind work of peers the interval holds their prefills, too.
	if interval <= 0 || a.ahead > 0 {
		return
	}
	// Behind whole requests it holds some of theirs, nobody knows how much: it says something only if it is long for all of them, or short
	// for this one alone.
	if present := a.slot.rateOr(a.router.rate.load()); a.front > 0 && tokens < present*interval {
		if tokens += float64(a.front); tokens >= present*interval {
			return
		}
		doubt = min(doubt, rateDoubt)
	}
	a.slot.learnRate(a.router.rate, tokens, interval, doubt, now)
}

// doubt returns what a slow prefill counts.
func (a *Attempt) doubt() float64 {
	switch {
	case a.inferred:
		return rateGuess
	case a.router.fleet.Load().nodes > 1:
		return rateDoubt
	}
	return 1
}

func (a *Attempt) misused() {
	if invariants {
		panic("policy: Attempt.End without a Pick, or a second time")
	}
	if a.router != nil {
		a.router.doubleEnds.Add(1)
	}
}
