package policy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

// A decision: open what is known of the request and the fleet; match its prompt (match.go) and
// stage the engines (stage.go, shortlist.go in large pools); ease new ones in (slowstart.go); let
// the strategy choose (prefix.go and unseen.go by default); charge the choice (attempt.go,
// package books).

// Pick chooses a backend and charges the request to it. Without an error the caller must call
// att.End exactly once. Errors: ErrNoBackend, ErrUnknownModel, ErrHolderGone, ErrAttemptInUse, and ErrFull if the request may wait.
func (r *Router) Pick(q *Request, now prefixtree.Time, att *Attempt) error {
	if att.stage != idle && att.stage != ended {
		return ErrAttemptInUse
	}
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	s.peek = false
	chosen, err := r.decide(s, q, now, &att.decision)
	if err != nil {
		return err
	}
	r.charge(s, &s.Candidates[chosen], att)
	r.rungs[att.decision.Rung].Add(1)
	if s.blind() {
		r.blind.Add(1)
	}
	return nil
}

func (r *Router) decide(s *Scene, q *Request, now prefixtree.Time, d *Decision) (int, error) {
	t := r.table.Load()
	route := t.routeOf(q)
	s.gated = q.MayWait
	if q.Stored {
		p := t.pool(q.Model)
		if p == nil {
			return 0, ErrUnknownModel
		}
		r.open(s, q, p, now)
		if !s.stageStored(t) {
			return 0, ErrHolderGone
		}
		s.assign()
		if s.gated {
			r.close(s, route.strategy)
		}
		d.fill(s, 0, Stored, route.strategy, false)
		d.Rule = route.Label
		return 0, s.whenFull(0)
	}
	p, fallback, err := t.poolFor(route, q, now)
	if err != nil {
		return 0, err
	}
	s.zone = t.zone
	chosen, err := r.decideIn(s, q, p, route.strategy, now, d)
	if d.Rule = route.Label; fallback {
		d.Pool, d.Fallback = route.Fallback, true
	} else {
		d.Pool = route.Pool
	}
	return chosen, err
}

func (r *Router) decideIn(s *Scene, q *Request, p *pool, strategy *named, now prefixtree.Time, d *Decision) (int, error) {
	r.open(s, q, p, now)
	r.match(s)
	_, some := strategy.Strategy.(prefix)
	lastResort := s.stage(some)
	s.assign()
	if len(s.Candidates) == 0 {
		return 0, ErrNoBackend
	}
	if p.decodes {
		s.keepRoomy()
	}
	if int64(now) < r.coldUntil.Load() {
		r.easeIn(s, strategy)
	}
	if s.gated {
		r.close(s, strategy)
	}
	chosen, rung := r.choose(s, strategy)
	d.fill(s, chosen, rung, strategy, lastResort)
	return chosen, s.whenFull(chosen)
}

func (s *Scene) whenFull(chosen int) error {
	if s.Candidates[chosen].full {
		return ErrFull
	}
	return nil
}

// PromptTokens estimates the tokens of a request's prompt, at least 1; of an unknown model by the
// prior.
func (r *Router) PromptTokens(q *Request) int {
	perToken := defaultBytesPerToken
	if p := r.table.Load().pool(q.Model); p != nil {
		perToken = p.texts.bytesPerToken()
	}
	return max(int(float64(max(q.PromptBytes, len(q.Hashes)*r.cfg.BlockBytes))/perToken+0.5), 1)
}

func (r *Router) open(s *Scene, q *Request, p *pool, now prefixtree.Time) {
	s.Request, s.pool, s.Now, s.truth = q, p, now, r.cfg.Truth
	s.slotTime, s.zoneCost = r.adapterTime.mean(), r.tuning.Load().zoneCost
	f := r.fleet.Load()
	s.Nodes, s.Staleness = f.nodes, min(f.staleness, maxStaleness)
	if s.Nodes > 1 && r.books.Peers() == 0 {
		s.Staleness = maxStaleness
	}
	if s.peek {
		s.rand = mix(r.cfg.Seed) + mix(r.seq.Load()+1)
	} else {
		s.rand = mix(r.cfg.Seed) + mix(r.seq.Add(1))
	}
	s.FromEngines, s.open, s.latest, s.traffic = false, 0, -1, demand.Rates{}
	s.Branch, s.CommonTokens, s.everywhere, s.known, s.hot = 0, 0, 0, 0, HotPrefix{}
	if cap(s.where) < len(p.entries) {
		s.where = make([]int32, len(p.entries))
		s.Candidates = make([]Candidate, 0, len(p.entries))
	}
	s.where = s.where[:len(p.entries)]
	s.Candidates = s.Candidates[:0]
	s.FleetRate = r.books.FleetRate()
	perToken := p.texts.bytesPerToken()
	s.TokensPerBlock = float64(r.cfg.BlockBytes) / perToken
	s.PromptTokens = max(int(float64(s.promptBytes(r.cfg.BlockBytes))/perToken+0.5), 1)
}

// choose repeats if another request has become the trial of a half-open backend.
func (r *Router) choose(s *Scene, strategy *named) (int, Rung) {
	for {
		i, rung := strategy.Choose(s)
		c := &s.Candidates[i]
		if !c.half || s.peek || c.full || c.engine.BeginTrial() {
			return i, rung
		}
		if len(s.Candidates) == 1 {
			c.half = false // the only candidate takes a second request rather than refuse it
			return i, rung
		}
		last := len(s.Candidates) - 1
		s.swap(i, last)
		s.Candidates = s.Candidates[:last]
	}
}

func (r *Router) charge(s *Scene, c *Candidate, att *Attempt) {
	q, now := s.Request, s.Now
	att.router, att.engine, att.model = r, c.engine, s.pool.texts
	att.hashes, att.bytes = q.Hashes, s.promptBytes(r.cfg.BlockBytes)
	if q.Continued {
		att.bytes = 0
	}
	att.held, att.followed = c.Held, c.Held > s.CommonTokens && !c.exact
	att.charge = books.Charge{
		Tokens: int64(att.decision.UncachedTokens), Resident: int64(s.PromptTokens + q.OutputHint), NonStreaming: q.NonStreaming,
	}
	att.trial, att.interval = c.half, 0
	att.adapter = s.adapter()
	att.run = s.pool.prefixes.Begin(&demand.Request{
		Hashes: q.Hashes, Known: s.known, Engines: len(s.pool.entries), TokensPerBlock: s.TokensPerBlock,
		Tokens: float64(s.PromptTokens), Uncached: c.Uncached, Rate: s.FleetRate, Busy: s.traffic.Prefill,
	}, now)
	att.remote = false
	att.at.picked, att.at.dispatched, att.at.first = now, 0, 0
	if f := r.fleet.Load(); f.nodes > 1 && f.staleness < maxStaleness { // older reports count as missing
		att.charge.Settled = now + prefixtree.Time(f.staleness)
	}
	att.stage = picked
	c.engine.Charge(&att.charge, now)
}

// Explain fills d with the decision of the next Pick and changes nothing. Errors as Pick.
func (r *Router) Explain(q *Request, now prefixtree.Time, d *Decision) error {
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	s.peek = true
	_, err := r.decide(s, q, now, d)
	return err
}

func (r *Router) putScene(s *Scene) {
	s.Request, s.pool = nil, nil
	r.scenes.Put(s)
}
