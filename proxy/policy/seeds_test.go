package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/rules"
)

// bench drives two routers with the same calls, and checks them against a naive account.
type bench struct {
	t    *testing.T
	r    *rand.Rand
	now  prefixtree.Time
	a, b *Router
	size int

	backends []Backend
	places   map[slotKey]*place
	peers    map[string]map[*place]books.PeerLoad
	open     []*try
	picks    int
	ends     int
	names    int
	families uint64
}

type slotKey struct {
	id  prefixtree.Backend
	gen uint32
}

type place struct {
	key                    slotKey
	active, charged        int64
	whole                  int64 // non-streamed requests' charges, some of which may have left the line
	peerTokens, peerActive int64
	engine                 *books.Engine
}

type try struct {
	a, b    *Attempt
	place   *place
	charged int64
	whole   bool
	stage   int
	since   prefixtree.Time
}

var benchModels = []string{"", "llama", "qwen", "mistral", "nobody's"}

func newBench(t *testing.T, seed uint64) *bench {
	r := virtual.Rand(seed, 1)
	w := &bench{
		t: t, r: r, now: t0, places: map[slotKey]*place{}, peers: map[string]map[*place]books.PeerLoad{},
		size: []int{1, 3, 8, 30, weighAll + 40}[r.IntN(5)],
	}
	cfg := Config{
		Strategy: builtin[r.IntN(len(builtin))], BlockBytes: testBlock, Seed: seed,
		SlowStart: []time.Duration{0, -1, 3 * time.Second}[r.IntN(3)],
	}
	if r.IntN(2) == 0 {
		cfg.Strategy = Prefix
	}
	for _, router := range []**Router{&w.a, &w.b} {
		tree, err := prefixtree.New(prefixtree.Config{Budget: 1 << 20, MaxBackends: 1024})
		if err != nil {
			t.Fatal(err)
		}
		if *router, err = NewRouter(cfg, tree); err != nil {
			t.Fatal(err)
		}
	}
	for range 1 + r.IntN(w.size) {
		w.join()
	}
	w.view()
	return w
}

func (w *bench) both(tell func(r *Router)) {
	tell(w.a)
	tell(w.b)
}

func (w *bench) join() {
	id := prefixtree.Backend(0)
	for !w.free(id) {
		id++
	}
	w.names++
	b := Backend{
		ID: id, Generation: uint32(w.names), Name: fmt.Sprintf("engine-%d", w.names),
		KVTokens: w.r.IntN(3) * 200_000, Weight: float64(w.r.IntN(3)),
	}
	for _, m := range benchModels[1 : len(benchModels)-1] {
		if w.r.IntN(3) == 0 {
			b.Models = append(b.Models, m)
		}
	}
	if w.r.IntN(3) == 0 {
		b.Since = w.now
	}
	w.backends = append(w.backends, b)
}

func (w *bench) free(id prefixtree.Backend) bool {
	if slices.ContainsFunc(w.backends, func(b Backend) bool { return b.ID == id }) || w.a.table.Load().engine(id) != nil {
		return false
	}
	busy := slices.ContainsFunc(w.open, func(q *try) bool { return q.place.key.id == id })
	w.both(func(r *Router) {
		if r.Release(id) == busy {
			w.t.Fatalf("id %d: requests run there: %v, and it is released all the same, or is not", id, busy)
		}
		if !busy {
			r.tree.(*prefixtree.Tree).Reset(id)
		}
	})
	return !busy
}

func (w *bench) view() {
	var list []rules.Rule
	if w.r.IntN(3) == 0 {
		list = []rules.Rule{{Model: "q*", Strategy: builtin[w.r.IntN(len(builtin))]}}
	}
	v, err := NewView(w.backends, list)
	if err != nil {
		w.t.Fatal(err)
	}
	w.both(func(r *Router) { r.SetView(v) })
	was := w.places
	w.places = map[slotKey]*place{}
	for _, b := range w.backends {
		k := slotKey{b.ID, b.Generation}
		if w.places[k] = was[k]; w.places[k] == nil {
			w.places[k] = &place{key: k, engine: w.a.table.Load().engine(b.ID)}
		}
		w.both(func(r *Router) { r.tree.(*prefixtree.Tree).SetGeneration(b.ID, b.Generation, w.now) })
	}
}

func (w *bench) change() {
	i := -1
	if len(w.backends) > 0 {
		i = w.r.IntN(len(w.backends))
	}
	switch what := w.r.IntN(6); {
	case what == 0 && len(w.backends) < w.size, i < 0:
		w.join()
	case what == 1:
		w.backends = slices.Delete(w.backends, i, i+1)
	case what == 2:
		w.names++
		w.backends[i].Generation = uint32(w.names)
	default:
		w.backends[i].State = State(w.r.IntN(int(Down) + 1))
	}
	w.view()
}

func (w *bench) eligible(q *Request) (ids []prefixtree.Backend, served bool) {
	for _, b := range w.backends {
		if len(q.Model) > 0 && len(b.Models) > 0 && !slices.Contains(b.Models, string(q.Model)) {
			continue
		}
		served = true
		if b.State == Active && !slices.Contains(q.Exclude, b.ID) {
			ids = append(ids, b.ID)
		}
	}
	return ids, served || len(q.Model) == 0
}

func (w *bench) request() *Request {
	q := &Request{Model: []byte(benchModels[w.r.IntN(len(benchModels))]), OutputHint: w.r.IntN(2) * 100}
	if w.r.IntN(2) == 0 {
		q.Model = nil
	}
	if w.r.IntN(4) > 0 {
		w.families++
		own := w.families
		if w.r.IntN(2) == 0 {
			own -= min(own, uint64(w.r.IntN(30)))
		}
		q.Hashes = prompt(uint64(w.r.IntN(4)), own, w.r.IntN(20), 1+w.r.IntN(60))
		q.PromptBytes = len(q.Hashes) * testBlock
	}
	if w.r.IntN(3) == 0 {
		q.Session = fmt.Append(nil, "s", w.r.IntN(20))
	}
	if w.r.IntN(8) == 0 {
		by(w.a, builtin[w.r.IntN(len(builtin))], q)
	}
	if w.r.IntN(10) == 0 {
		q.LoRA = fmt.Append(nil, "adapter-", w.r.IntN(12))
	}
	q.NonStreaming = w.r.IntN(3) == 0
	for range w.r.IntN(3) * w.r.IntN(3) {
		q.Exclude = append(q.Exclude, prefixtree.Backend(w.r.IntN(w.size+1)))
	}
	return q
}

func (w *bench) pick() {
	q := w.request()
	ids, served := w.eligible(q)
	best := books.Avoided
	for _, id := range ids {
		best = min(best, w.a.table.Load().engine(id).Standing(w.now))
	}
	var shown Decision
	explained := w.a.Explain(q, w.now, &shown) // on one router only: they diverge if it changes anything
	tried := &try{a: new(Attempt), b: new(Attempt), whole: q.NonStreaming, since: w.now}
	err, other := w.a.Pick(q, w.now, tried.a), w.b.Pick(q, w.now, tried.b)
	switch {
	case fmt.Sprint(err) != fmt.Sprint(other), fmt.Sprint(err) != fmt.Sprint(explained):
		w.t.Fatalf("%v, the other %v, explained %v", err, other, explained)
	case !served && !errors.Is(err, ErrUnknownModel), served && len(ids) == 0 && !errors.Is(err, ErrNoBackend), served && len(ids) > 0 && err != nil:
		w.t.Fatalf("served %v by %d: %v", served, len(ids), err)
	case err != nil:
		return
	}
	d := tried.a.Decision()
	if !reflect.DeepEqual(d, tried.b.Decision()) {
		w.t.Fatalf("the same seed and calls, and\n%v\nand\n%v", d, tried.b.Decision())
	}
	w.judge(d, q, ids, best)
	w.picks++
	tried.place = w.places[slotKey{d.Backend, d.Generation}]
	tried.charged = int64(d.UncachedTokens)
	tried.place.active++
	tried.book(tried.charged)
	w.open = append(w.open, tried)
}

// judge checks a decision among ids, the healthiest of which has health best.
func (w *bench) judge(d *Decision, q *Request, ids []prefixtree.Backend, best books.Standing) {
	w.t.Helper()
	chosen := w.places[slotKey{d.Backend, d.Generation}]
	switch {
	case chosen == nil:
		w.t.Fatalf("not of the view: %v", d)
	case !slices.Contains(ids, d.Backend):
		w.t.Fatalf("excluded, drained, down or of another model, while %v are free: %v", ids, d)
	case d.LastResort != (best == books.Avoided):
		w.t.Fatalf("last resort %v, the healthiest is %d: %v", d.LastResort, best, d)
	case d.Trial && chosen.engine.BeginTrial():
		w.t.Fatalf("a trial that nobody noted: %v", d)
	case d.PromptTokens < 1, d.UncachedTokens < 1, d.UncachedTokens > d.PromptTokens, d.PredictedTokens < 0, d.PredictedTokens > d.PromptTokens, d.Age < 0:
		w.t.Fatalf("impossible tokens: %+v", *d)
	case d.Eligible < 1, d.Eligible > len(ids)+len(q.Exclude), len(d.Candidates) == 0, d.Candidates[0].Backend != d.Backend:
		w.t.Fatalf("%d eligible of %d: %v", d.Eligible, len(ids), d)
	}
	for _, c := range d.Candidates {
		if !slices.Contains(ids, c.Backend) || math.IsNaN(c.Cost) || math.IsNaN(c.QueuedTokens) || c.QueuedTokens < 0 || !(c.Rate > 0) || c.HeldTokens > float64(d.PromptTokens)+1 {
			w.t.Fatalf("impossible candidate %+v of %v", c, d)
		}
	}
	if best == books.Healthy && !d.Trial && chosen.engine.Standing(w.now) != books.Healthy {
		w.t.Fatalf("goes to one that is left alone, no trial: %v", d)
	}
}

func (w *bench) step(i int, end bool) {
	q := w.open[i]
	both := func(do func(a *Attempt)) { do(q.a); do(q.b) }
	switch {
	case q.stage == 0 && !end:
		both(func(a *Attempt) { a.Dispatched(w.now) })
		q.stage++
	case q.stage == 1 && !end:
		if q.whole && w.r.IntN(2) == 0 {
			both(func(a *Attempt) { a.Answers(w.now) })
		} else {
			both(func(a *Attempt) { a.FirstToken(w.now) })
		}
		q.book(-q.charged)
		q.stage++
	default:
		o := Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}
		if d := q.a.Decision(); w.r.IntN(2) == 0 {
			o.PromptTokens = 1 + d.PromptTokens/2 + w.r.IntN(d.PromptTokens)
			if w.r.IntN(3) > 0 {
				o.CachedTokens = w.r.IntN(o.PromptTokens + 1)
			}
		}
		if w.r.IntN(3) == 0 {
			o.Failed, o.Request = books.Failure(w.r.IntN(books.Failures)), uint64(w.r.IntN(4))
			if w.r.IntN(3) == 0 {
				o.FailedBefore = []prefixtree.Backend{prefixtree.Backend(w.r.IntN(w.size + 1))}
			}
		}
		both(func(a *Attempt) { a.End(o, w.now) })
		if q.stage < 2 {
			q.book(-q.charged)
		}
		q.place.active--
		w.ends++
		w.open = slices.Delete(w.open, i, i+1)
	}
}

func (q *try) book(tokens int64) {
	if q.whole {
		q.place.whole += tokens
		return
	}
	q.place.charged += tokens
}

var benchPeers = []string{"north", "south", "west"}

func (w *bench) peer() {
	origin := benchPeers[w.r.IntN(len(benchPeers))]
	var loads []books.PeerLoad
	for _, b := range w.backends {
		if w.r.IntN(3) == 0 {
			loads = append(loads, books.PeerLoad{Backend: b.ID, PrefillTokens: w.r.Int64N(20_000) - 100, Active: w.r.Int64N(5)})
		}
	}
	loads = append(loads, books.PeerLoad{Backend: 60_000, PrefillTokens: 7, Active: 7}) // not in any view
	held := w.peers[origin]
	if held == nil {
		held = map[*place]books.PeerLoad{}
	}
	switch w.r.IntN(3) {
	case 0:
		held = map[*place]books.PeerLoad{}
		w.both(func(r *Router) { r.SetPeerLoad(origin, loads, w.now) })
	case 1:
		w.both(func(r *Router) { r.UpdatePeerLoad(origin, loads, w.now) })
	case 2:
		w.both(func(r *Router) { r.DropPeer(origin) })
		delete(w.peers, origin)
		return
	}
	for _, l := range loads {
		for k, p := range w.places {
			if k.id == l.Backend {
				held[p] = books.PeerLoad{PrefillTokens: max(l.PrefillTokens, 0), Active: max(l.Active, 0)}
			}
		}
	}
	w.peers[origin] = held
}

func (w *bench) fleet() {
	switch w.r.IntN(5) {
	case 0:
		nodes := 1 + w.r.IntN(4)*w.r.IntN(30)
		loads := []time.Duration{0, 200 * time.Millisecond, 20 * time.Second, never}[w.r.IntN(4)]
		w.both(func(r *Router) { r.SetFleet(nodes, loads) })
	case 1:
		var list []HotPrefix
		for f := range uint64(w.r.IntN(4)) {
			list = append(list, HotPrefix{Anchor: prompt(f, 0, 20, 20)[w.r.IntN(10)], Tokens: 1_000, Replicas: w.r.IntN(w.size + 1)})
		}
		w.both(func(r *Router) { r.SetHotPrefixes(list) })
	case 2:
		b, failing := prefixtree.Backend(w.r.IntN(w.size)), w.r.IntN(2) == 0
		w.both(func(r *Router) { r.SetReported(b, failing, w.now) })
	case 3:
		b, rate, weight := prefixtree.Backend(w.r.IntN(w.size)), w.r.Float64()*20_000, float64(w.r.IntN(30))
		w.both(func(r *Router) { r.SetPeerRate(b, rate, weight) })
	case 4:
		b, say := prefixtree.Backend(w.r.IntN(w.size)), books.Telemetry{Running: w.r.IntN(50), Waiting: w.r.IntN(9), KVUsage: w.r.Float64()}
		w.both(func(r *Router) { r.SetTelemetry(b, say) })
	}
}

func (w *bench) books() {
	w.t.Helper()
	for _, b := range w.backends {
		p := w.places[slotKey{b.ID, b.Generation}]
		p.peerTokens, p.peerActive = 0, 0
		for _, held := range w.peers {
			p.peerTokens += held[p].PrefillTokens
			p.peerActive += held[p].Active
		}
		for _, r := range []*Router{w.a, w.b} {
			tokens, active := r.Load(b.ID)
			peerTokens, peerActive := r.PeerLoad(b.ID)
			if tokens < p.charged || tokens > p.charged+p.whole || active != p.active || peerTokens != p.peerTokens || peerActive != p.peerActive {
				w.t.Fatalf("%s: own %d tokens, %d active, others' %d and %d; by the account %+v", b.Name, tokens, active, peerTokens, peerActive, *p)
			}
		}
	}
	own := 0
	w.b.OwnLoads(nil, w.now) // it settles non-streamed requests, too
	for _, l := range w.a.OwnLoads(nil, w.now) {
		if l.PrefillTokens > 0 || l.Active > 0 {
			own++
		}
	}
	for _, p := range w.places {
		if p.charged > 0 || p.active > 0 {
			own--
		}
	}
	st := w.a.Stats()
	outcomes := uint64(0)
	for n := range maps.Values(st.Outcomes) {
		outcomes += n
	}
	if own != 0 || st.Picks != uint64(w.picks) || outcomes != uint64(w.ends) || st.DoubleEnds != 0 || st.Blind > st.Picks {
		w.t.Fatalf("%d backends with load too many; %+v after %d picks and %d ends", own, st, w.picks, w.ends)
	}
	for _, k := range w.a.OwnWork(8, w.now) {
		w.sane(k.Requests, k.Fresh, k.Prefill, k.Active)
	}
	for _, p := range w.a.OwnTraffic(8, w.now) {
		w.sane(p.Rate, p.Whole, p.Prefill)
	}
}

func (w *bench) sane(values ...float64) {
	w.t.Helper()
	for _, v := range values {
		if !(v >= 0 && v <= 1e6) { // catches NaN
			w.t.Fatalf("told %v after %d requests", values, w.picks)
		}
	}
}

func (w *bench) finish() {
	engines := map[*books.Engine]bool{}
	for _, q := range w.open {
		engines[q.a.engine], engines[q.b.engine] = true, true
	}
	for len(w.open) > 0 {
		w.now += prefixtree.Time(w.r.IntN(2_000))
		w.step(w.r.IntN(len(w.open)), w.r.IntN(2) == 0)
	}
	for _, origin := range benchPeers {
		w.both(func(r *Router) { r.DropPeer(origin) })
		delete(w.peers, origin)
	}
	w.books()
	for _, r := range []*Router{w.a, w.b} {
		if err := r.books.Left(); err != nil {
			w.t.Fatal(err)
		}
		for _, p := range r.table.Load().pools {
			if n := p.prefixes.Active(); n != 0 {
				w.t.Fatalf("%d requests are left in the work of a pool", n)
			}
		}
	}
	for e := range engines {
		if err := e.Left(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestSeedsRouter(t *testing.T) {
	t.Parallel()
	virtual.Seeds(t, 12, 1, func(t *testing.T, seed uint64) {
		w := newBench(t, seed)
		swarm := virtual.NewSwarm(w.r, 6, 0, 1)
		back := w.r.IntN(4) == 0
		for step := range 300 {
			switch swarm.Next(w.r) {
			case 0:
				for range 1 + w.r.IntN(4) {
					w.pick()
				}
			case 1:
				for range min(len(w.open), 1+w.r.IntN(4)) {
					w.step(w.r.IntN(len(w.open)), w.r.IntN(6) == 0)
				}
			case 2:
				w.change()
			case 3:
				w.peer()
			case 4:
				w.fleet()
			case 5:
				w.now += prefixtree.Time(w.r.IntN(20_000))
				if back && w.r.IntN(8) == 0 {
					w.now -= prefixtree.Time(w.r.IntN(600_000))
				}
			}
			w.now += prefixtree.Time(w.r.IntN(50))
			if step%20 == 0 {
				w.books()
			}
		}
		w.finish()
	})
}
