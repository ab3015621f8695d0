package policy

import (
	"slices"
	"sync"

	"grapevine.example/prefixtree"
)

// Need says which roles can serve a request. It counts only in pools with roles.
type Need uint8

const (
	// Whole: one backend computes prompt and reply.
	Whole Need = iota
	// Split: a prefill backend may compute the prompt for a decode backend.
	Split
	// PromptOnly: there is no reply to decode, so any role serves.
	PromptOnly
)

// parts are the backends of a pool with roles by what they can do. All but prefill share the pool's
// history.
type parts struct {
	of      [PromptOnly + 1]*pool // what requests need
	prefill [2]*pool              // of unpaired and of paired backends
}

// The pool of the decoding backends stands for the model.
func (t *table) newParts(key uint64, positions []int32, known map[uint64]*history) *pool {
	pick := func(key uint64, suits func(*Backend) bool) *pool {
		var some []int32
		for _, at := range positions {
			if suits(&t.view.Backends[at]) {
				some = append(some, at)
			}
		}
		return t.newPart(key, some, known)
	}
	q := new(parts)
	for i, paired := range [2]bool{false, true} {
		// Keys are the same on all nodes, and not those of models.
		q.prefill[i] = pick(mix(mix(key)+uint64(i)+1), func(b *Backend) bool { return b.Role == Prefill && b.Paired == paired })
	}
	q.of[Split] = pick(key, func(b *Backend) bool { return b.Role != Prefill && (!b.Paired || len(q.prefill[1].entries) > 0) })
	q.of[Whole] = pick(key, func(b *Backend) bool { return b.Role != Prefill && !b.Paired })
	q.of[PromptOnly] = pick(key, func(b *Backend) bool { return !b.Paired })
	main := q.of[Split]
	q.of[Whole].history, q.of[PromptOnly].history, main.parts = main.history, main.history, q
	main.share(main.texts)
	return main
}

// share gives a pool and its parts what is known of a model's prompts.
func (p *pool) share(texts *modelStat) {
	p.texts = texts
	if q := p.parts; q != nil {
		for _, part := range slices.Concat(q.of[:], q.prefill[:]) {
			part.texts = texts
		}
	}
}

// PickPrefill chooses a backend to compute the prompt for the decode backend that Pick chose, and
// charges the prompt to it instead. False: decode computes the prompt itself, because that costs
// less or no prefill backend can; for a paired one only the latter. After true call att.End exactly
// once. Call it before decode is dispatched.
func (r *Router) PickPrefill(q *Request, now prefixtree.Time, decode, att *Attempt) bool {
	if decode.stage != picked || att.stage != idle && att.stage != ended {
		return false
	}
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	// The first decision only compares: a prompt that stays must leave no trace in the pool.
	if _, ok := r.decidePrefill(s, q, now, &decode.decision, &att.decision, true); !ok {
		return false
	}
	chosen, ok := r.decidePrefill(s, q, now, &decode.decision, &att.decision, false)
	if !ok {
		return false // all prefill backends failed meanwhile
	}
	r.charge(s, &s.Candidates[chosen], att)
	decode.remote = true
	decode.engine.Prefilled(&decode.charge, now)
	return true
}

// ExplainPrefill fills d with the decision of PickPrefill and changes nothing.
func (r *Router) ExplainPrefill(q *Request, now prefixtree.Time, decode, d *Decision) bool {
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	_, ok := r.decidePrefill(s, q, now, decode, d, true)
	return ok
}

func (r *Router) decidePrefill(s *Scene, q *Request, now prefixtree.Time, decode, d *Decision, peek bool) (chosen int, ok bool) {
	t := r.table.Load()
	route := t.routeOf(q)
	p := t.labelled(decode.Pool, q.Model)
	if decode.Role != Decode || q.Need != Split || p == nil || p.parts == nil {
		return 0, false
	}
	from := p.parts.prefill[0]
	if decode.Paired {
		from = p.parts.prefill[1]
	}
	if len(from.entries) == 0 {
		return 0, false
	}
	// The KV cache travels from there to the decode backend.
	s.peek, s.gated, s.zone = peek, false, t.zoneOf(decode.Backend)
	chosen, err := r.decideIn(s, q, from, route.strategy, now, d)
	if err != nil {
		return 0, false
	}
	d.Rule, d.Pool, d.Fallback = decode.Rule, decode.Pool, decode.Fallback
	c := &s.Candidates[chosen]
	d.Alone = decode.Alone
	d.Remote = c.Queued/c.Rate + c.Overdue + c.Uncached/c.Rate + r.transfers.seconds(float64(decode.UncachedTokens)) + s.way(c)
	return chosen, decode.Paired || !peek || d.Remote < d.Alone
}

// alone returns the seconds to compute what the cache lacks here: until the queue is done, and the
// computation, which delays this request and every running one.
func (c *Candidate) alone() float64 {
	return c.Queued/c.Rate + c.Overdue + (1+float64(c.Active))*c.Uncached/c.Rate
}

// keepRoomy removes decode backends without memory for the request, unless none has it.
func (s *Scene) keepRoomy() {
	need := float64(s.PromptTokens + s.Request.OutputHint)
	s.keep(func(c *Candidate) bool {
		return c.role != Decode || c.kv == 0 || c.KVUsage()*float64(c.kv)+need <= float64(c.kv)
	})
}

// transfers learns the time from the dispatch of a request, whose prompt another backend computed,
// to its first token: a line over the tokens fetched, through decayed sums.
type transfers struct {
	mu              sync.Mutex
	n, x, y, xx, xy float64
}

const (
	// Until they are measured, a transfer takes 20 ms and 10 us per token: 100,000 tokens/s, as a
	// model with 128 KiB per token has over 100 Gbit/s.
	transferStart, transferToken = 0.020, 10e-6
	// The weights of the prior, of two transfers of these lengths, and of an older transfer to the
	// next, so that some fifty count.
	transferPrior, transferShort, transferLong = 0.5, 500, 8000
	transferFade                               = 0.98
)

func (t *transfers) learn(tokens, seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n, t.x, t.y = t.n*transferFade+1, t.x*transferFade+tokens, t.y*transferFade+seconds
	t.xx, t.xy = t.xx*transferFade+tokens*tokens, t.xy*transferFade+tokens*seconds
}

func (t *transfers) seconds(tokens float64) float64 {
	t.mu.Lock()
	n, x, y, xx, xy := t.n, t.x, t.y, t.xx, t.xy
	t.mu.Unlock()
	for _, at := range [2]float64{transferShort, transferLong} {
		expected := transferStart + transferToken*at
		n += transferPrior
		x += transferPrior * at
		y += transferPrior * expected
		xx += transferPrior * at * at
		xy += transferPrior * at * expected
	}
	slope := max((n*xy-x*y)/(n*xx-x*x), 0) // the prior keeps the divisor above 0
	return max((y-slope*x)/n, 0) + slope*tokens
}
