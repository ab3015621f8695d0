package policy

import (
	"math"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"grapevine/prefixtree"
)

// table joins a view with the router's state.
type table struct {
	view    *View
	slots   []*slot
	rules   ruleSet
	byModel map[string]*pool
	general *pool // backends that serve any model; may be nil
	all     *pool
}

// pool is the active backends that may serve one model.
type pool struct {
	key     uint64 // the same on all nodes
	view    *View
	entries []entry
	byID    []int32 // backend id -> entry, -1: none
	*history
	weighted bool
	large    // zero up to weighAll entries
}

// Keys of the pools without a model.
const (
	poolAll     = 0
	poolGeneral = 1
)

// history is what a pool learned from its requests; it outlives views.
type history struct {
	turn atomic.Uint64
	pace pace
	work workMeter
}

type entry struct {
	slot   *slot
	key    uint64
	weight float64
	kv     int
	id     prefixtree.Backend
}

func (p *pool) name(b prefixtree.Backend) string {
	e, _ := p.view.Backend(b)
	return e.Name
}

func (t *table) slot(b prefixtree.Backend) *slot {
	if int(b) >= len(t.view.byID) || t.view.byID[b] < 0 {
		return nil
	}
	return t.slots[t.view.byID[b]]
}

func (t *table) pool(model []byte) *pool {
	if len(model) == 0 {
		return t.all
	}
	if p := t.byModel[string(model)]; p != nil {
		return p
	}
	return t.general
}

func (t *table) pools() []*pool {
	list := make([]*pool, 0, 2+len(t.byModel))
	if list = append(list, t.all); t.general != nil {
		list = append(list, t.general)
	}
	for _, p := range t.byModel {
		list = append(list, p)
	}
	return list
}

// View returns the view in use.
func (r *Router) View() *View { return r.table.Load().view }

// SetView replaces the view. Running requests keep their slots, remaining backends their state. It
// panics if a rule names an unknown strategy.
func (r *Router) SetView(v *View) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	old := r.table.Load()
	t := &table{view: v, byModel: make(map[string]*pool, len(v.byModel)), rules: ruleSet{fallback: r.fallback}}
	t.slots = make([]*slot, len(v.Backends))
	for i := range v.Backends {
		b := &v.Backends[i]
		t.slots[i] = r.ledger.slot(b.ID, b.Generation)
		r.begins(t.slots[i], b.Since)
	}
	for _, rule := range v.Rules {
		rr := resolvedRule{Rule: rule, strategy: r.strategies[rule.Strategy]}
		if rr.strategy == nil {
			panic("policy: view with a rule for strategy " + rule.Strategy + ", which this router does not have")
		}
		if n := len(rule.Model); n > 0 && rule.Model[n-1] == '*' {
			rr.Model, rr.modelPrefix = rule.Model[:n-1], true
		}
		t.rules.rules = append(t.rules.rules, rr)
	}
	t.all = t.newPool(poolAll, v.all, historyOf(old, func(o *table) *pool { return o.all }))
	if len(v.general) > 0 {
		t.general = t.newPool(poolGeneral, v.general, historyOf(old, func(o *table) *pool { return o.general }))
	}
	for m, at := range v.byModel {
		t.byModel[m] = t.newPool(max(xxh3.HashString(m), poolGeneral+1), at, historyOf(old, func(o *table) *pool { return o.byModel[m] }))
	}
	r.sketch.resize(len(v.Backends))
	for _, p := range t.pools() {
		p.hear(r.peerHeat) // pools of new models have none yet
	}
	r.table.Store(t)
}

func historyOf(old *table, of func(*table) *pool) *history {
	if old != nil {
		if p := of(old); p != nil {
			return p.history
		}
	}
	return new(history)
}

func (t *table) newPool(key uint64, positions []int32, h *history) *pool {
	p := &pool{key: key, view: t.view, history: h, byID: make([]int32, len(t.view.byID))}
	for i := range p.byID {
		p.byID[i] = -1
	}
	p.entries = make([]entry, 0, len(positions))
	for _, at := range positions {
		b := &t.view.Backends[at]
		if b.State != Active {
			continue
		}
		p.byID[b.ID] = int32(len(p.entries))
		p.entries = append(p.entries, entry{slot: t.slots[at], key: keyOf(b), weight: b.Weight, kv: b.KVTokens, id: b.ID})
		p.weighted = p.weighted || b.Weight != p.entries[0].weight
	}
	if len(p.entries) > weighAll {
		p.enlarge(positions)
	}
	return p
}

func (r *Router) open(s *Scene, q *Request, p *pool, now prefixtree.Time) {
	s.Request, s.pool, s.Now, s.sampled = q, p, now, false
	f := r.fleet.Load()
	s.Nodes, s.Staleness = f.nodes, min(f.staleness, maxStaleness)
	if s.Nodes > 1 && r.peers.heard.Load() == 0 {
		s.Staleness = maxStaleness
	}
	if s.peek {
		s.rand = mix(r.cfg.Seed) + mix(r.seq.Load()+1)
	} else {
		s.rand = mix(r.cfg.Seed) + mix(r.seq.Add(1))
	}
	s.Branch, s.CommonTokens, s.nameless, s.judged = 0, 0, false, false
	s.HotAnchor, s.Replicas, s.common, s.known = 0, 0, 0, 0
	if cap(s.where) < len(p.entries) {
		s.where = make([]int32, len(p.entries))
		s.Candidates = make([]Candidate, 0, len(p.entries))
	}
	s.where = s.where[:len(p.entries)]
	s.Candidates = s.Candidates[:0]
	s.FleetRate, s.HoldSeconds = r.rate.load(), r.hold.load()
	perToken := s.model.bytesPerToken()
	s.TokensPerBlock = float64(r.cfg.BlockBytes) / perToken
	s.PromptTokens = max(int(float64(s.promptBytes(r.cfg.BlockBytes))/perToken+0.5), 1)
}

// stage adds the eligible backends, or if all are avoided those with the fewest failures and
// returns true.
func (s *Scene) stage() (lastResort bool) {
	s.stageAll()
	if len(s.Candidates) > 0 {
		return false
	}
	s.stageLeastBad()
	return true
}

func (s *Scene) stageAll() {
	s.Candidates = s.Candidates[:0]
	entries := s.pool.entries
	for i := range entries {
		s.where[i] = -1
		s.put(i, &entries[i])
	}
}

func (s *Scene) put(at int, e *entry) bool {
	h := e.slot.health(s.Now)
	if h == avoided || excluded(s.Request.Exclude, e.id) {
		return false
	}
	s.add(at, e, h == halfOpen)
	return true
}

// stageLeastBad reads each count once: counts may grow meanwhile, and one entry must remain.
func (s *Scene) stageLeastBad() {
	fewest := int32(math.MaxInt32)
	for i := range s.pool.entries {
		e := &s.pool.entries[i]
		if excluded(s.Request.Exclude, e.id) {
			continue
		}
		n := e.slot.consecutive()
		if n > fewest {
			continue
		}
		if n < fewest {
			fewest = n
			s.Candidates = s.Candidates[:0]
			for j := range i {
				s.where[j] = -1
			}
		}
		s.add(i, e, false)
	}
}

func (s *Scene) add(at int, e *entry, half bool) {
	s.where[at] = int32(len(s.Candidates))
	rate := e.slot.rateOr(s.FleetRate)
	own := e.slot.active.Load()
	// A composite literal would be copied, which takes a third of a Pick at 2,000 backends.
	s.Candidates = s.Candidates[:len(s.Candidates)+1]
	c := &s.Candidates[len(s.Candidates)-1]
	c.slot, c.key, c.half, c.charged, c.outside = e.slot, e.key, half, false, false
	c.Backend, c.Weight, c.Rate = e.id, e.weight, rate
	c.OwnQueued, c.Overdue = e.slot.queued(s.Now, rate)
	c.Queued = c.OwnQueued + float64(e.slot.peerTokens.Load())
	c.Outstanding = e.slot.charged.Load() + e.slot.peerTokens.Load()
	c.Active, c.OwnActive = own+e.slot.peerActive.Load(), own
	c.Resident, c.KVTokens = e.slot.resident.Load(), e.kv
	c.HeldBlocks, c.Held, c.Age = 0, 0, 0
	c.Cost = math.Inf(1)
	c.at, c.rank = int32(at), unranked
}

func (s *Scene) candidate(at int) *Candidate {
	// A large pool does not clear where, so the candidate must confirm it.
	if i := s.where[at]; i >= 0 && int(i) < len(s.Candidates) && s.Candidates[i].at == int32(at) {
		return &s.Candidates[i]
	}
	return nil
}

func (s *Scene) size() int {
	if s.sampled {
		return s.stats.eligible
	}
	return len(s.Candidates)
}

func excluded(list []prefixtree.Backend, b prefixtree.Backend) bool {
	for _, x := range list {
		if x == b {
			return true
		}
	}
	return false
}

func (r *Router) match(s *Scene) {
	q, n := s.Request, float64(s.PromptTokens)
	if len(q.Hashes) == 0 {
		return
	}
	var common int
	s.Branch, common, s.judged = r.sketch.branch(q.Hashes, 1/(2*float64(max(len(s.pool.entries), 1))), s.Now, s.peek)
	s.nameless = common >= min(len(q.Hashes), sketchDepth)
	s.CommonTokens = min(float64(common)*s.TokensPerBlock, n)
	r.tree.Match(&s.matches, q.Hashes, s.Now)
	if s.Nodes > 1 && !s.judged {
		s.widespread()
	}
	s.common = common
	if hot := r.hot.Load(); hot != nil {
		s.common = s.agree(hot, common)
	}
}

// holders includes backends outside the pool.
func (s *Scene) holders() []prefixtree.Holder {
	if len(s.Request.Hashes) == 0 {
		return nil
	}
	return s.matches.Holders()
}

func (p *pool) entryOf(b prefixtree.Backend) int {
	if int(b) >= len(p.byID) {
		return -1
	}
	return int(p.byID[b])
}

// assign sets what each candidate holds of the prompt.
func (r *Router) assign(s *Scene) {
	n := float64(s.PromptTokens)
	for i := range s.Candidates {
		s.Candidates[i].Uncached = n
	}
	further := s.model.cachedFurther()
	for _, h := range s.holders() {
		s.known = max(s.known, h.Blocks)
		at := s.pool.entryOf(h.Backend)
		if at < 0 {
			continue
		}
		c := s.candidate(at)
		if c == nil {
			continue
		}
		c.HeldBlocks = h.Blocks
		c.Held = min(float64(h.Expected)*s.TokensPerBlock, n)
		c.Uncached = n - c.Held
		if c.Held > s.CommonTokens {
			c.Uncached *= 1 - further
		}
		c.Uncached = max(c.Uncached, 1)
		c.Age = h.Age.Milliseconds()
	}
}

// widespread treats as common what more than half of the backends hold, before the sketch can
// judge.
func (s *Scene) widespread() {
	holders := s.matches.Holders()
	deep := func(blocks int32) (n int) {
		for i := range holders {
			if holders[i].Blocks >= blocks {
				n++
			}
		}
		return n
	}
	low, high := int32(0), int32(len(s.Request.Hashes))
	for low < high {
		if mid := (low + high + 1) / 2; 2*deep(mid) > len(s.pool.entries) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	if tokens := float64(low) * s.TokensPerBlock; tokens > s.CommonTokens {
		s.CommonTokens = min(tokens, float64(s.PromptTokens))
		if s.nameless = int(low) == len(s.Request.Hashes); !s.nameless {
			s.Branch = s.Request.Hashes[low]
		}
	}
}

func (s *Scene) promptBytes(blockBytes int) int {
	return max(s.Request.PromptBytes, len(s.Request.Hashes)*blockBytes)
}
