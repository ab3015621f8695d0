package policy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

// Outcome is the result of an attempt. Token counts are the engine's, -1 if not reported.
type Outcome struct {
	PromptTokens, CachedTokens, OutputTokens int
	Failed                                   books.Failure
	// Request distinguishes two failures of one request from failures of two. 0: only Connect
	// counts.
	Request uint64
	// FailedBefore lists backends that failed the request before, except by refusal.
	FailedBefore []prefixtree.Backend
	RetryAfter   int64 // ms from a 429's Retry-After; 0: not given
}

type stage uint8

const (
	idle stage = iota
	picked
	dispatched
	answering
	ended
)

// Attempt is one try of a request at one backend, and owns its charges from Pick to End. Reusable
// after End; not safe for concurrent use; do not copy.
type Attempt struct {
	router   *Router
	engine   *books.Engine
	charge   books.Charge
	model    *modelStat
	decision Decision
	trail    prefixtree.TouchHistory
	hashes   []prefixtree.Hash
	bytes    int
	held     float64
	followed bool // held exceeds the common prefix
	adapter  uint64
	run      demand.Run
	interval float64 // seconds of prefill; 0: unknown
	remote   bool    // another backend prefills; see PickPrefill
	at       struct{ picked, dispatched, first prefixtree.Time }
	stage    stage
	trial    bool
}

// Decision returns the choice, valid until the next Pick.
func (a *Attempt) Decision() *Decision { return &a.decision }

// Dispatched records the placement once the request is sent: one shed before must not advertise a
// holder.
func (a *Attempt) Dispatched(now prefixtree.Time) {
	if a.stage != picked {
		return
	}
	a.stage = dispatched
	a.at.dispatched = now
	a.engine.Dispatched(&a.charge, now)
	if len(a.hashes) > 0 {
		a.router.tree.Record(a.engine.ID(), a.hashes, now, &a.trail)
	}
	if a.adapter != 0 {
		a.engine.BeginAdapter(a.adapter, now)
	}
}

// FirstToken ends the prefill charge and measures its duration, once, after Dispatched.
func (a *Attempt) FirstToken(now prefixtree.Time) {
	if a.stage != dispatched {
		return
	}
	a.stage = answering
	a.at.first = now
	if a.remote {
		if !a.decision.Paired { // the prefill of a pair has only begun at dispatch
			a.router.transfers.learn(float64(a.decision.UncachedTokens), float64(now-a.at.dispatched)/1000)
		}
		a.router.answered(a.engine, a.at.picked, now)
		return
	}
	a.interval = a.engine.FirstToken(&a.charge, now)
	a.router.answered(a.engine, a.at.picked, now)
}

// Answers ends the prefill charge of an answer without a visible first token.
func (a *Attempt) Answers(now prefixtree.Time) {
	if a.stage == dispatched {
		a.engine.Prefilled(&a.charge, now)
	}
}

// End releases the charges and learns from the outcome. Call it exactly once per successful Pick: a
// second call changes nothing and counts in Stats.DoubleEnds.
func (a *Attempt) End(o Outcome, now prefixtree.Time) {
	if a.stage == idle {
		return
	}
	if a.stage == ended {
		a.router.doubleEnds.Add(1)
		return
	}
	before := a.stage
	a.release(now)
	if a.adapter != 0 && before != picked {
		a.engine.EndAdapter(a.adapter)
		if o.Failed == books.None {
			a.router.adapterTime.add(float64(now-a.at.dispatched) / 1000)
		}
	}
	switch {
	case o.Failed.Blames():
		if a.router.failed(a.engine, &o, a.at.picked, now) && a.router.cfg.Failed != nil {
			a.router.cfg.Failed(a.engine.ID(), o.Failed, now)
		}
	case o.Failed == books.Busy:
		a.engine.Refused(o.RetryAfter, now)
	case o.Failed != books.ClientGone && before != picked:
		a.router.answered(a.engine, a.at.picked, now)
	}
	a.router.outcomes[min(int(o.Failed), len(a.router.outcomes)-1)].Add(1)
	useless := o.Failed.Blames() || o.Failed == books.Busy || o.Failed == books.Transfer
	if before == dispatched && useless && len(a.hashes) > 0 {
		a.router.tree.Revert(a.engine.ID(), a.hashes, &a.trail)
	}
	if before != picked && !useless {
		a.learn(o, now)
	}
	a.hashes = nil
}

// Withdraw is End for an attempt that was not dispatched: it releases the charges and teaches nothing.
func (a *Attempt) Withdraw(now prefixtree.Time) {
	if a.stage != picked {
		if a.stage != idle {
			a.router.doubleEnds.Add(1)
		}
		return
	}
	a.release(now)
	a.hashes = nil
}

func (a *Attempt) release(now prefixtree.Time) {
	a.stage = ended
	a.engine.Prefilled(&a.charge, now)
	a.engine.Release(&a.charge)
	a.run.End(now)
	if a.trial {
		a.engine.EndTrial()
	}
}

func (a *Attempt) learn(o Outcome, now prefixtree.Time) {
	if o.PromptTokens > 0 {
		a.model.learn(a.bytes, o.PromptTokens)
	}
	if a.remote {
		o.CachedTokens = -1 // the engine counts what it fetched as cached
	}
	if a.followed && o.PromptTokens > 0 && o.CachedTokens >= 0 {
		a.model.learnAnswers(a.held, float64(o.CachedTokens), float64(o.PromptTokens))
	}
	uncached := float64(a.decision.UncachedTokens)
	if o.PromptTokens > 0 && o.CachedTokens >= 0 {
		uncached = float64(max(o.PromptTokens-o.CachedTokens, 0))
	}
	switch {
	case a.engine.ReportsRate(now):
	case a.charge.NonStreaming && !a.remote && a.at.first == 0 && o.Failed == books.None && o.OutputTokens > 0:
		a.router.books.LearnPace(a.engine, uncached, float64(now-a.at.dispatched)/1000, float64(o.OutputTokens))
	case a.interval > 0 && !a.charge.Behind():
		a.router.books.LearnRate(a.engine, uncached, a.interval)
	}
	if len(a.hashes) == 0 || o.CachedTokens < 0 && o.Failed != books.None && a.at.first == 0 {
		return
	}
	blocks := -1 // unknown; the prompt's age still counts from now
	if o.CachedTokens >= 0 {
		perToken := a.model.bytesPerToken()
		if o.PromptTokens > 0 && a.bytes > 0 {
			perToken = float64(a.bytes) / float64(o.PromptTokens)
		}
		// The prompt bytes lack the chat template's tokens: round.
		blocks = min(int(float64(o.CachedTokens)*perToken/float64(a.router.cfg.BlockBytes)+0.5), len(a.hashes))
	}
	lesson := a.router.tree.Learn(a.engine.ID(), a.hashes, &a.trail, blocks, now)
	if lesson.CacheLost && a.router.cfg.Forgot != nil {
		a.router.cfg.Forgot(a.engine.ID())
	}
}
