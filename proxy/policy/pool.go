package policy

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"grapevine/prefixtree"
)

type table struct {
	view    *View
	slots   []*slot
	rules   ruleSet
	pools   []*pool
	byModel map[string]*pool
	general *pool // backends that serve any model; may be nil
	roles   bool  // a backend has a role
	all     *pool
}

// pool is the active backends that may serve one model.
type pool struct {
	key     uint64 // the same on all nodes
	model   string // "": requests without a model; "*": models that no backend lists
	named   bool   // stands for the model; else it is the prefill part of such a pool
	view    *View
	entries []entry
	byID    []int32 // backend id -> entry, -1: none
	*history
	texts    *modelStat // of the history of the pool that stands for the model
	weighted bool
	adapter  bool   // the model is a LoRA adapter, as any backend says
	decodes  bool   // some are decode backends
	parts    *parts // nil unless a backend has a role

	ordersMu sync.RWMutex
	orders   map[prefixtree.Hash][]int32 // by hot prefix's anchor; see order
}

const (
	poolAll     = 0
	poolGeneral = 1
)

// history outlives a change of the view.
type history struct {
	turn  atomic.Uint64
	load  workload
	work  workMeter
	texts *modelStat
}

type entry struct {
	slot   *slot
	key    uint64  // of rendezvous orders
	weight float64 // share of work
	kv     int     // capacity of the KV cache in tokens; 0: unknown
	id     prefixtree.Backend
	role   Role
	paired bool
	at     int32 // position in the pool; -1: none
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

// Roles reports whether a backend of the view has another role than Both.
func (r *Router) Roles() bool { return r.table.Load().roles }

func (r *Router) View() *View { return r.table.Load().view }

// SetView replaces the view; requests and remaining backends keep their state. A node calls it under
// the lock of its list of engines.
func (r *Router) SetView(v *View) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	t := &table{view: v, byModel: make(map[string]*pool, len(v.byModel)), rules: ruleSet{fallback: r.fallback}}
	t.slots = make([]*slot, len(v.Backends))
	for i := range v.Backends {
		b := &v.Backends[i]
		t.slots[i] = r.ledger.slot(b.ID, b.Generation)
		r.begins(t.slots[i], b.Since)
		t.roles = t.roles || b.Role != Both
	}
	for _, rule := range v.Rules {
		model, isPrefix := strings.CutSuffix(rule.Model, "*")
		t.rules.rules = append(t.rules.rules, resolvedRule{
			model: []byte(model), modelPrefix: isPrefix, pathPrefix: []byte(rule.PathPrefix),
			header: rule.Header, value: []byte(rule.HeaderValue), strategy: r.strategies[rule.Strategy],
		})
	}
	known := map[uint64]*history{}
	if old := r.table.Load(); old != nil {
		for _, p := range old.pools {
			known[p.key] = p.history
		}
	}
	t.all = t.newPool("", poolAll, v.all, known)
	if len(v.general) > 0 {
		t.general = t.newPool("*", poolGeneral, v.general, known)
	}
	for m, at := range v.byModel {
		p := t.newPool(m, max(xxh3.HashString(m), poolGeneral+1), at, known)
		for _, i := range at {
			_, found := slices.BinarySearch(v.Backends[i].Adapters, m)
			p.adapter = p.adapter || found
		}
		t.byModel[m] = p
	}
	slices.SortFunc(t.pools, func(a, b *pool) int { return cmp.Compare(a.key, b.key) })
	for _, p := range t.pools {
		p.load.setPeers(r.peerTraffic[p.key]) // pools of new models have none yet
	}
	r.table.Store(t)
}

// entry returns one that is in no pool.
func (t *table) entry(at int32) entry {
	b := &t.view.Backends[at]
	return entry{slot: t.slots[at], key: keyOf(b), weight: b.Weight, kv: b.KVTokens, id: b.ID, role: b.Role, paired: b.Paired, at: -1}
}

func (t *table) newPool(model string, key uint64, positions []int32, known map[uint64]*history) *pool {
	var p *pool
	if slices.ContainsFunc(positions, func(at int32) bool { return t.view.Backends[at].Role != Both }) {
		p = t.newParts(key, positions, known)
		t.pools = append(t.pools, p.parts.prefill[0], p.parts.prefill[1])
	} else {
		p = t.newPart(key, positions, known)
	}
	p.model, p.named = model, true
	t.pools = append(t.pools, p)
	return p
}

func (t *table) newPart(key uint64, positions []int32, known map[uint64]*history) *pool {
	p := &pool{key: key, view: t.view, history: known[key], byID: make([]int32, len(t.view.byID))}
	if p.history == nil {
		p.history = &history{texts: newModelStat()}
	}
	p.texts = p.history.texts
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
		e := t.entry(at)
		e.at = p.byID[b.ID]
		p.entries = append(p.entries, e)
		p.decodes = p.decodes || b.Role == Decode
		p.weighted = p.weighted || b.Weight != p.entries[0].weight
	}
	return p
}
