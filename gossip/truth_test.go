package gossip

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"grapevine.example/prefixtree"
)

// The last backend is never fenced and takes the probes.
const virtualBackends = 5

type spot struct {
	hash prefixtree.Hash
	key  uint32
}

// truth records every placement in a virtual fleet. Trees may know less, never anything else.
type truth struct {
	mu       sync.Mutex
	placings map[spot]map[prefixtree.Time]*placing
	ended    map[*treeKnowledge]bool
	forgets  map[uint32][]forgetting
	latest   map[spot]uint32
	first    map[uint32]map[uint32]prefixtree.Time
	renewed  map[uint32]prefixtree.Time // when the last node learned the generation
	skewed   bool                       // clocks were set, so times prove nothing
	newest   prefixtree.Time
}

type placing struct {
	generation uint32
	by         []*treeKnowledge
}

type forgetting struct {
	by *treeKnowledge
	at prefixtree.Time
}

func newTruth() *truth {
	return &truth{placings: map[spot]map[prefixtree.Time]*placing{}, ended: map[*treeKnowledge]bool{}, forgets: map[uint32][]forgetting{}, latest: map[spot]uint32{}, renewed: map[uint32]prefixtree.Time{},
		first: map[uint32]map[uint32]prefixtree.Time{},
	}
}

func (w *truth) show(now prefixtree.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest = max(w.newest, now)
}

func (w *truth) place(by *treeKnowledge, key uint32, chain []prefixtree.Hash, at prefixtree.Time, generation uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first[key] == nil {
		w.first[key] = map[uint32]prefixtree.Time{}
	}
	if first, known := w.first[key][generation]; !known || at < first {
		w.first[key][generation] = at
	}
	for _, h := range chain {
		p := spot{h, key}
		if w.placings[p] == nil {
			w.placings[p] = map[prefixtree.Time]*placing{}
		}
		if w.placings[p][at] == nil {
			w.placings[p][at] = &placing{}
		}
		t := w.placings[p][at]
		t.generation, t.by = max(t.generation, generation), append(t.by, by)
		w.latest[p] = max(w.latest[p], generation)
	}
}

func (w *truth) renew(key uint32, at prefixtree.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewed[key] = max(w.renewed[key], at)
}

func (w *truth) judge(key uint32, f prefixtree.Fact) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	times, placed := w.placings[spot{f.Hash, key}]
	then, generation := times[f.Time], uint32(0)
	if then != nil {
		generation = then.generation
	}
	switch {
	case !placed:
		return fmt.Errorf("invented: block %x was never placed on backend %x", f.Hash, key)
	case w.skewed && w.latest[spot{f.Hash, key}] < f.Generation && !w.begunLocked(key, f.Generation, math.MaxInt64):
		return fmt.Errorf("fenced: block %x on backend %x is of a generation before %d", f.Hash, key, f.Generation)
	case w.skewed && f.Time > w.newest+6_000: // peers' times are capped at 5 s ahead
		return fmt.Errorf("invented: time %d is later than any clock has shown", f.Time)
	case w.skewed:
		return nil
	case then == nil:
		return fmt.Errorf("invented: block %x was not placed on backend %x at %d, but at %d other times", f.Hash, key, f.Time, len(times))
	case generation < f.Generation && !w.begunLocked(key, f.Generation, f.Time):
		return fmt.Errorf("fenced: block %x on backend %x is of generation %d, before %d", f.Hash, key, generation, f.Generation)
	}
	return nil
}

// begunLocked reports whether the generation's process ran at that time, whether nodes knew or not.
func (w *truth) begunLocked(key, generation uint32, at prefixtree.Time) bool {
	for g, first := range w.first[key] {
		if g >= generation && first <= at {
			return true
		}
	}
	return false
}

// comparable reports whether all trees must agree: no generation change clears the fact on some.
func (w *truth) comparable(key uint32, f prefixtree.Fact) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.Time > w.renewed[key]
}

func (w *truth) end(k *treeKnowledge) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[k] = true
}

func (w *truth) forget(by *treeKnowledge, key uint32, at prefixtree.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgets[key] = append(w.forgets[key], forgetting{by, at})
}

// sure reports whether all processes that affect a placement still run.
func (w *truth) sure(p spot, at prefixtree.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.forgets[p.key] {
		if w.ended[f.by] && f.at >= at {
			return false
		}
	}
	then := w.placings[p][at]
	return then != nil && !slices.ContainsFunc(then.by, func(k *treeKnowledge) bool { return w.ended[k] })
}

type virtualNames struct{ turn int }

var virtualKeys = func() (keys [virtualBackends]uint32) {
	for i := range keys {
		keys[i] = prefixtree.BackendKey(fmt.Sprintf("http://engine-%d.test:8000", i))
	}
	return keys
}()

func (n virtualNames) id(backend int) prefixtree.Backend {
	return prefixtree.Backend((backend + n.turn) % virtualBackends)
}

func (n virtualNames) Key(b prefixtree.Backend) (uint32, bool) {
	if b >= virtualBackends {
		return 0, false
	}
	return virtualKeys[(int(b)+virtualBackends-n.turn%virtualBackends)%virtualBackends], true
}

func (n virtualNames) Backend(key uint32) (prefixtree.Backend, bool) {
	for i, k := range virtualKeys {
		if k == key {
			return n.id(i), true
		}
	}
	return 0, false
}

type treeKnowledge struct {
	*model
	tree   *prefixtree.Tree
	outbox *prefixtree.Outbox
	names  virtualNames
	clock  func() prefixtree.Time
	truth  *truth

	generations map[prefixtree.Backend]uint32
	changing    sync.Mutex // one change at a time
	published   []prefixtree.Fact

	counting sync.Mutex
	applied  Applied
	batches  uint64
	drained  uint64
	seen     map[batchKey]bool
	twice    error
}

func newTreeKnowledge(name string, turn int, clock func() prefixtree.Time, w *truth) (*treeKnowledge, error) {
	k := &treeKnowledge{
		model: newModel(name), outbox: prefixtree.NewOutbox(0), names: virtualNames{turn}, truth: w,
		generations: map[prefixtree.Backend]uint32{}, seen: map[batchKey]bool{},
	}
	var err error
	k.tree, err = prefixtree.New(prefixtree.Config{Budget: 1 << 20, MaxBackends: virtualBackends, Changed: func(facts []prefixtree.Fact) {
		k.published = append(k.published, facts...)
		k.outbox.Add(facts)
	}})
	if err != nil {
		return nil, err
	}
	k.clock = func() prefixtree.Time {
		now := clock()
		w.show(now)
		return now
	}
	return k, nil
}

// change returns what a call publishes.
func (k *treeKnowledge) change(call func()) []prefixtree.Fact {
	k.changing.Lock()
	defer k.changing.Unlock()
	k.published = nil
	call()
	return k.published
}

func (k *treeKnowledge) Drain(dst []byte, limit int) ([]byte, int) {
	payload, records := k.outbox.Drain(dst, limit, k.names)
	k.counting.Lock()
	defer k.counting.Unlock()
	k.drained += uint64(records)
	return payload, records
}

func (k *treeKnowledge) Apply(origin string, payload []byte, shift time.Duration) (Applied, error) {
	a, err := k.merge(payload, shift)
	k.counting.Lock()
	defer k.counting.Unlock()
	k.batches++
	batch := batchKey{origin, maphash.Bytes(payloadSeed, payload)}
	if k.seen[batch] && !k.truth.skewed { // a fence may repeat
		k.twice = fmt.Errorf("a batch of %s was applied twice", origin)
	}
	k.seen[batch] = true
	k.applied.Records += a.Records
	k.applied.News += a.News
	k.applied.Unknown += a.Unknown
	return a, err
}

func (k *treeKnowledge) merge(payload []byte, shift time.Duration) (Applied, error) {
	var got prefixtree.Applied
	var err error
	k.change(func() { got, err = k.tree.ApplyDelta(payload, k.names, shift, k.clock()) })
	return Applied{Records: got.Records, News: got.News, Unknown: got.Unknown}, err
}

func (k *treeKnowledge) Snapshot(limit int, yield func([]byte, int) bool) {
	k.tree.Snapshot(k.clock(), k.names, limit, yield)
}

func (k *treeKnowledge) SnapshotSize() int { return k.tree.Anchors(k.clock()) }

func (k *treeKnowledge) ApplySnapshot(page []byte, shift time.Duration) (Applied, error) {
	return k.merge(page, shift)
}

// cached is the engine's report; -1: none.
func (k *treeKnowledge) request(backend int, chain []prefixtree.Hash, cached int) (end func(failed bool)) {
	b, key, trail := k.names.id(backend), virtualKeys[backend], new(prefixtree.TouchHistory)
	tell := func(at prefixtree.Time, change func()) {
		news, generation := k.change(change), k.generations[b]
		k.truth.place(k, key, chain, at, generation)
		for _, f := range news {
			if f.Kind == prefixtree.Add || f.Kind == prefixtree.Touch {
				k.truth.place(k, key, chain, f.Time, generation) // just after a fence
			}
		}
	}
	now := k.clock()
	tell(now, func() { k.tree.Record(b, chain, now, trail) })
	return func(failed bool) {
		if failed {
			k.change(func() { k.tree.Revert(b, chain, trail) })
			return
		}
		now := k.clock()
		tell(now, func() { k.tree.Learn(b, chain, trail, cached, now) })
	}
}

// forget merges a fence, as a lost cache publishes it, and sends it to the peers.
func (k *treeKnowledge) forget(backend int) {
	k.truth.forget(k, virtualKeys[backend], k.clock())
	b := k.names.id(backend)
	fence := []prefixtree.Fact{{Time: k.clock(), Generation: k.generations[b], Backend: b, Kind: prefixtree.Fence}}
	scratch := prefixtree.NewOutbox(0)
	scratch.Add(fence)
	payload, _ := scratch.Drain(nil, prefixtree.MinPayload, k.names)
	if _, err := k.merge(payload, 0); err != nil {
		panic(err)
	}
	k.outbox.Add(fence)
}

func (k *treeKnowledge) renew(backend int, generation uint32) {
	now := k.clock()
	b := k.names.id(backend)
	k.tree.SetGeneration(b, generation, now)
	k.generations[b] = max(k.generations[b], generation)
	k.truth.renew(virtualKeys[backend], now)
}

func (k *treeKnowledge) begin(generations [virtualBackends]uint32) {
	now := k.clock()
	for b, g := range generations {
		k.tree.SetGeneration(k.names.id(b), g, now)
		k.generations[k.names.id(b)] = g
	}
}

// believes returns the tree's facts and the first violation of the truth.
func (k *treeKnowledge) believes() (held map[spot]prefixtree.Time, err error) {
	held = map[spot]prefixtree.Time{}
	k.tree.Range(k.clock(), func(f prefixtree.Fact) bool {
		key, _ := k.names.Key(f.Backend)
		if err = k.truth.judge(key, f); err != nil {
			return false
		}
		if k.truth.comparable(key, f) {
			held[spot{f.Hash, key}] = f.Time
		}
		return true
	})
	return held, err
}

func (w *truth) difference(a, b map[spot]prefixtree.Time) string {
	missing, extra, other := 0, 0, 0
	example := ""
	for p, at := range a {
		then, ok := b[p]
		if at == then || !w.sure(p, max(at, then)) {
			continue
		}
		if !ok {
			missing++
			example = fmt.Sprintf("%x on %x at %d is missing", p.hash, p.key, at)
		} else {
			other++
			example = fmt.Sprintf("%x on %x is of %d and of %d", p.hash, p.key, at, then)
		}
	}
	for p, at := range b {
		if _, ok := a[p]; !ok && w.sure(p, at) {
			extra++
			example = fmt.Sprintf("%x on %x at %d is too much", p.hash, p.key, at)
		}
	}
	if missing+extra+other == 0 {
		return ""
	}
	return fmt.Sprintf("%d missing, %d too many, %d of another time, e.g. %s", missing, extra, other, example)
}

// virtualChain shares its first blocks within a family.
func virtualChain(family, own uint64, common, blocks int) []prefixtree.Hash {
	chain := make([]prefixtree.Hash, blocks)
	path := uint64(0)
	for i := range chain {
		name := family
		if i >= common {
			name = 1<<40 | own
		}
		path = scramble(path ^ name<<16 + uint64(i) + 1)
		chain[i] = prefixtree.Hash(path)
	}
	return chain
}

// The finaliser of SplitMix64.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
