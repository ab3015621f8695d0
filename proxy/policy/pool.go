package policy

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/rules"
)

type table struct {
	view    *View
	engines []*books.Engine // by position in the view
	zone    zone            // the node's
	// The routes of the rules and of no rule, and the members of bodies that name sessions.
	routes  []Route
	members []string
	pools   []*pool
	roles   bool // a backend has a role
	set
	chosen map[string]*set     // by the labels that rules name
	shared map[uint64]*engines // by their positions; only while the table is made
}

// set is the pools of all backends, or of those with some labels.
type set struct {
	byModel map[string]*pool
	general *pool // backends that serve any model; may be nil
	all     *pool
}

// pool is the active backends that may serve one model.
type pool struct {
	key    uint64 // the same on all nodes
	model  string // "": requests without a model; "*": models that no backend lists
	labels string // of all its backends, as a rule names them; "": any
	named  bool   // stands for the model; else it is the prefill part of such a pool
	view   *View
	// positions in the view of all its backends, of whatever role and state; nil for parts.
	positions []int32
	engines
	*history
	texts   *modelStat // of the history of the pool that stands for the model
	adapter bool       // the model is a LoRA adapter, as any backend says
	parts   *parts     // nil unless a backend has a role

	ordersMu sync.RWMutex
	orders   map[prefixtree.Hash][]int32 // by hot prefix's anchor; see order
}

// engines are the backends of pools: of one, or of all whose models and labels fit the same backends. Immutable.
type engines struct {
	at       []int32 // positions in the view; some may not be active
	entries  []entry
	byID     []int32 // backend id -> entry, -1: none
	lane     uint64  // see Lane
	weighted bool
	decodes  bool // some are decode backends
}

const (
	poolAll     = 0
	poolGeneral = 1
)

// history outlives a change of the view.
type history struct {
	turn     atomic.Uint64
	traffic  demand.Traffic
	prefixes demand.Prefixes
	texts    *modelStat
}

type entry struct {
	engine *books.Engine
	key    uint64  // of rendezvous orders
	weight float64 // share of work
	kv     int     // capacity of the KV cache in tokens; 0: unknown
	id     prefixtree.Backend
	role   Role
	paired bool
	at     int32 // position in the pool; -1: none
	zone   zone
}

func (p *pool) name(b prefixtree.Backend) string {
	e, _ := p.view.Backend(b)
	return e.Name
}

func (p *pool) entryOf(b prefixtree.Backend) int {
	if int(b) >= len(p.byID) {
		return -1
	}
	return int(p.byID[b])
}

func (s *set) pool(model []byte) *pool {
	if len(model) == 0 {
		return s.all
	}
	if p := s.byModel[string(model)]; p != nil {
		return p
	}
	return s.general
}

// Roles reports whether a backend of the view has another role than Both.
func (r *Router) Roles() bool { return r.table.Load().roles }

func (r *Router) View() *View { return r.table.Load().view }

// SetView replaces the view; requests and remaining backends keep their state. A node calls it under
// the lock of its list of engines.
func (r *Router) SetView(v *View) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.setViewLocked(v)
}

func (r *Router) setViewLocked(v *View) {
	t := &table{view: v, engines: make([]*books.Engine, len(v.Backends)), routes: r.routes(v.Rules), members: rules.Members(v.Rules), zone: unique.Make(r.tuning.Load().cfg.Zone), chosen: make(map[string]*set), shared: make(map[uint64]*engines)}
	for i := range v.Backends {
		b := &v.Backends[i]
		t.engines[i] = r.books.Engine(b.ID, b.Generation, int64(mix(mix(r.cfg.Seed)+uint64(b.ID))%books.FullBucket))
		r.begins(t.engines[i], b.Since)
		t.roles = t.roles || b.Role != Both
	}
	known := map[uint64]*history{}
	if old := r.table.Load(); old != nil {
		for _, p := range old.pools {
			known[p.key] = p.history
		}
	}
	t.set = t.newSet("", known)
	for _, rule := range v.Rules {
		for _, labels := range []string{rule.Pool, rule.Fallback} {
			if labels != "" && labels != rules.AnyBackend && t.chosen[labels] == nil {
				t.chosen[labels] = new(t.newSet(labels, known))
			}
		}
	}
	t.shared = nil
	slices.SortFunc(t.pools, func(a, b *pool) int { return cmp.Compare(a.key, b.key) })
	for _, p := range t.pools {
		if known[p.key] == nil {
			p.hear(r.peerTraffic[p.key])
		}
	}
	r.table.Store(t)
}

// entry returns one that is in no pool.
func (t *table) entry(at int32) entry {
	b := &t.view.Backends[at]
	return entry{engine: t.engines[at], key: keyOf(b), weight: b.Weight, kv: b.KVTokens, id: b.ID, role: b.Role, paired: b.Paired, at: -1, zone: b.zone()}
}

// newSet makes the pools of the backends that have all the labels, and adds them to t.pools.
func (t *table) newSet(labels string, known map[uint64]*history) (s set) {
	v := t.view
	fit := v.fitting(labels)
	add := func(model string, key uint64, positions []int32, all *pool) *pool {
		p := t.newPool(model, key, labels, fit.of(positions), known)
		if t.pools = append(t.pools, p); p.parts != nil {
			t.pools = append(t.pools, p.parts.prefill[0], p.parts.prefill[1])
		}
		if labels != "" {
			p.share(all.texts) // where prompts are computed does not change what they are like
		}
		return p
	}
	s.all = add("", poolAll, v.all, t.all)
	if len(v.general) > 0 {
		s.general = add("*", poolGeneral, v.general, t.general)
	}
	s.byModel = make(map[string]*pool, len(v.byModel))
	for m, at := range v.byModel {
		p := add(m, max(xxh3.HashString(m), poolGeneral+1), at, t.byModel[m])
		if s.byModel[m] = p; labels != "" {
			p.adapter = t.byModel[m].adapter
			continue
		}
		for _, i := range at {
			_, found := slices.BinarySearch(v.Backends[i].Adapters, m)
			p.adapter = p.adapter || found
		}
	}
	return s
}

// newPool makes the pool of the backends at these positions, whose key among all pools is that of the model and the labels.
func (t *table) newPool(model string, key uint64, labels string, positions []int32, known map[uint64]*history) *pool {
	if labels != "" {
		key = mix(key ^ xxh3.HashString(labels))
	}
	var p *pool
	if slices.ContainsFunc(positions, func(at int32) bool { return t.view.Backends[at].Role != Both }) {
		p = t.newParts(key, positions, known)
	} else {
		p = t.newPart(key, positions, known)
	}
	p.model, p.labels, p.named, p.positions = model, labels, true, positions
	return p
}

// fitting are the backends with some labels, by position; nil: all.
type fitting []bool

func (v *View) fitting(labels string) fitting {
	if labels == "" {
		return nil
	}
	fit := make(fitting, len(v.Backends))
	for at := range fit {
		fit[at] = v.Backends[at].has(labels)
	}
	return fit
}

// of returns those of the positions that have the labels.
func (l fitting) of(positions []int32) (some []int32) {
	if l == nil {
		return positions
	}
	for _, at := range positions {
		if l[at] {
			some = append(some, at)
		}
	}
	return some
}

func (b *Backend) has(labels string) bool {
	for label := range strings.SplitSeq(labels, ",") {
		if !slices.Contains(b.Labels, label) {
			return false
		}
	}
	return true
}

// labelled returns the pool of a model's backends with some labels; nil if no backend serves the model. The pools of rules that no
// longer hold are made for the requests that still follow these.
func (t *table) labelled(labels string, model []byte) *pool {
	if labels == "" || labels == rules.AnyBackend {
		return t.pool(model)
	}
	if s := t.chosen[labels]; s != nil {
		return s.pool(model)
	}
	p := t.pool(model)
	if p == nil {
		return nil
	}
	made := t.newPool(p.model, p.key, labels, t.view.fitting(labels).of(p.positions), nil)
	made.share(p.texts)
	return made
}

// takes reports whether a backend of the pool is eligible for the request.
func (p *pool) takes(q *Request, now prefixtree.Time) bool {
	for i := range p.entries {
		if e := &p.entries[i]; !slices.Contains(q.Exclude, e.id) && e.engine.Standing(now) != books.Avoided {
			return true
		}
	}
	return false
}

// partFor returns the backends of a request's model with some labels that have a role for it.
func (t *table) partFor(labels string, q *Request) (*pool, error) {
	p := t.labelled(labels, q.Model)
	if p == nil {
		return nil, ErrUnknownModel
	}
	if p.parts != nil {
		if p = p.parts.of[q.Need]; len(p.entries) == 0 {
			return nil, ErrNoRole
		}
	}
	return p, nil
}

// poolFor returns the pool that a route sends a request to, and whether it is the fallback.
func (t *table) poolFor(route *Route, q *Request, now prefixtree.Time) (p *pool, fallback bool, err error) {
	p, err = t.partFor(route.Pool, q)
	if route.Fallback == "" || err == nil && p.takes(q, now) {
		return p, false, err
	}
	other, errOther := t.partFor(route.Fallback, q)
	if errOther != nil || err == nil && !other.takes(q, now) {
		return p, false, err
	}
	return other, true, nil
}

func (t *table) newPart(key uint64, positions []int32, known map[uint64]*history) *pool {
	p := &pool{key: key, view: t.view, history: known[key], engines: *t.enginesAt(positions)}
	if p.history == nil {
		p.history = &history{texts: newModelStat()}
	}
	p.texts = p.history.texts
	return p
}

// enginesAt returns the active backends at these positions, which rise. Thousands of adapters and labels mostly fit the same ones.
func (t *table) enginesAt(positions []int32) *engines {
	h := uint64(len(positions))
	for _, at := range positions {
		h = mix(h ^ uint64(at))
	}
	if g := t.shared[h]; g != nil && slices.Equal(g.at, positions) {
		return g
	}
	g := &engines{at: positions, byID: slices.Repeat([]int32{-1}, len(t.view.byID)), entries: make([]entry, 0, len(positions))}
	for _, at := range positions {
		b := &t.view.Backends[at]
		if b.State != Active {
			continue
		}
		g.byID[b.ID] = int32(len(g.entries))
		e := t.entry(at)
		e.at = g.byID[b.ID]
		g.entries = append(g.entries, e)
		g.decodes = g.decodes || b.Role == Decode
		g.weighted = g.weighted || b.Weight != g.entries[0].weight
	}
	g.lane = laneOf(g.entries)
	if t.shared != nil {
		t.shared[h] = g
	}
	return g
}
