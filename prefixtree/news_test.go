package prefixtree

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// held is what a tree holds at anchors, as a naive map.
type held map[spot]Time

type spot struct {
	Hash
	Backend
}

func heldBy(tree *Tree, now Time) held {
	m := held{}
	tree.Range(now, func(f Fact) bool { m[spot{f.Hash, f.Backend}] = f.Time; return true })
	return m
}

// replay applies a tree's news.
type replay struct {
	held
	gone *retractions
}

func (m replay) tell(f Fact) {
	p := spot{f.Hash, f.Backend}
	var r retraction
	switch f.Kind {
	case Add, Touch:
		m.held[p] = max(m.held[p], f.Time)
		if r, _ = m.gone.covering(f.Hash, f.Backend, f.Generation, f.Time); !r.covers(f.Time) {
			return
		}
	case Drop, Revert:
		r = m.gone.add(f.Backend, []Hash{f.Hash}, retraction{f.Before, f.Time, f.Generation})[0]
	case Fence:
		maps.DeleteFunc(m.held, func(p spot, at Time) bool { return p.Backend == f.Backend && at <= f.Time })
	}
	if r.covers(m.held[p]) {
		if m.held[p] = r.from; r.from == 0 {
			delete(m.held, p)
		}
	}
}

func kinds(news []Fact) map[Kind]int {
	n := map[Kind]int{}
	for _, f := range news {
		n[f.Kind]++
	}
	return n
}

// A map that applies only a tree's news always equals the tree.
func TestNewsIsWhatChanged(t *testing.T) {
	const backends = 3
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		tree, err := New(Config{Horizon: 64 * time.Second, MaxBackends: backends, Budget: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		told, expired := replay{held{}, new(retractions)}, held{}
		now, called := start, start
		var open []visitor
		var news []Fact
		backend := func() Backend { return Backend(rapid.IntRange(0, backends-1).Draw(t, "backend")) }
		take := func() visitor {
			i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			v := open[i]
			open = slices.Delete(open, i, i+1)
			return v
		}
		t.Repeat(map[string]func(*rapid.T){
			"record": func(t *rapid.T) {
				v := visitor{b: backend(), chain: modelChain(t, hasher)}
				called = now - Time(rapid.IntRange(0, 3_000).Draw(t, "behind"))
				news = tree.RecordNews(v.b, v.chain, called, &v.history, news)
				open = append(open, v)
			},
			"learn": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				v := take()
				cached := rapid.SampledFrom([]int{-1, 0, 0, len(v.chain) / 2, len(v.chain)}).Draw(t, "cached")
				_, news = tree.LearnNews(v.b, v.chain, &v.history, cached, now, news)
			},
			"revert": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				v := take()
				_, news = tree.RevertNews(v.b, v.chain, &v.history, news)
			},
			"drop": func(t *rapid.T) {
				chain := modelChain(t, hasher)
				news = append(news, tree.Drop(backend(), chain, rapid.IntRange(0, len(chain)).Draw(t, "from"), now)...)
			},
			"forget": func(t *rapid.T) { news = append(news, tree.Forget(backend(), now-500)...) },
			"wait":   func(t *rapid.T) { now += Time(rapid.IntRange(1, 5_000).Draw(t, "wait")) },
			"": func(t *rapid.T) {
				for _, f := range news {
					told.tell(f)
				}
				news = news[:0]
				// Expiry is not news. The tree may forget a fact that was expired when a call came, and until
				// then the fact counts again if the horizon grows past its age.
				for p, at := range told.held {
					if l := &tree.limits[p.Backend]; l.dead(at, now) || l.dead(at, called) {
						expired[p] = at
						delete(told.held, p)
					}
				}
				called = now
				got := heldBy(tree, now)
				maps.DeleteFunc(got, func(p spot, at Time) bool { return told.held[p] == 0 && expired[p] == at })
				if !maps.Equal(got, told.held) {
					t.Fatalf("the tree holds %d anchors, its news tell %d: %s", len(got), len(told.held), difference(got, told.held))
				}
			},
		})
	})
}

type visitor struct {
	b       Backend
	chain   []Hash
	history TouchHistory
}

func difference(a, b held) (example []any) {
	for p, at := range a {
		if other, ok := b[p]; !ok || other != at {
			return []any{p, "at", at - start, "and", ok, other - start}
		}
	}
	for p, at := range b {
		if _, ok := a[p]; !ok {
			return []any{p, "at", at - start, "only in the second"}
		}
	}
	return nil
}

func TestNewsOfAConversation(t *testing.T) {
	const grain = 1_000
	tree := newTree(t, Config{Horizon: grainsPerHorizon * grain * time.Millisecond})
	chain := chainOf(t, 1, 50)
	var tr TouchHistory
	news := tree.RecordNews(1, chain[:18], start, &tr, nil)
	if want := tree.AppendFacts(nil, 1, chain[:18], start); !slices.Equal(news, want) {
		t.Errorf("a new prompt: %+v, want %+v", news, want)
	}
	if news := tree.RecordNews(1, chain[:18], start+grain, nil, nil); len(news) != 0 {
		t.Errorf("within the grain: %+v", news)
	}
	news = tree.RecordNews(1, chain[:30], start+grain, nil, nil)
	if k := kinds(news); len(news) != 4 || k[Add] != 4 { // 20, 24, 28, 30
		t.Errorf("the next turn: %+v", news)
	}
	// 18 blocks are 17 anchors.
	_, news = tree.LearnNews(1, chain[:18], &tr, 18, start+2*grain, nil)
	if k := kinds(news); k[Touch] != 17 || len(news) != 17 {
		t.Errorf("the end of a request: %+v", news)
	}
	// A known block that becomes an anchor is sent with its time.
	news = tree.RecordNews(1, chain[:27], start+2*grain, nil, nil)
	if want := (Fact{Hash: chain[26], Time: start + grain, Backend: 1, Span: 3}); len(news) != 1 || news[0] != want {
		t.Errorf("a new end between anchors: %+v", news)
	}
	// Anchors: 16 + 18 + 20, 24, 27, 28, 30 + 32 ... 48, 50.
	news = tree.RecordNews(1, chain, start+10*grain, &tr, nil)
	if k := kinds(news); k[Touch] != 22 || k[Add] != 6 {
		t.Errorf("a third turn: %v", k)
	}
	if !slices.IsSortedFunc(news, func(a, b Fact) int { return slices.Index(chain, a.Hash) - slices.Index(chain, b.Hash) }) {
		t.Error("not root first")
	}
	_, news = tree.RevertNews(1, chain, &tr, nil)
	if k := kinds(news); k[Revert] != 28 || news[27].Before != 0 || news[0].Before != start+2*grain || news[0].Time != start+10*grain {
		t.Errorf("taken back: %v, %+v", k, news)
	}
}

func TestNewsOfALostCache(t *testing.T) {
	tree := newTree(t, Config{Horizon: 100 * time.Second})
	var chains [3][]Hash
	for i := range chains {
		chains[i] = chainOf(t, uint64(i+1), 10)
		tree.Record(1, chains[i], start, nil)
	}
	for i, chain := range chains {
		var tr TouchHistory
		tree.Record(1, chain, start+10_000, &tr)
		lesson, news := tree.LearnNews(1, chain, &tr, 0, start+10_100, nil)
		last := i == len(chains)-1
		if lesson.CacheLost != last || (kinds(news)[Fence] == 1) != last {
			t.Fatalf("surprise %d: %+v, %v", i+1, lesson, kinds(news))
		}
		if last && news[len(news)-1] != (Fact{Time: start + 9_999, Backend: 1, Kind: Fence}) {
			t.Errorf("%+v", news[len(news)-1])
		}
	}
	if news := tree.Forget(defaultMaxBackends, start); len(news) != 0 {
		t.Errorf("out of range: %+v", news)
	}
}

// One enormous prompt leaves no memory behind.
func TestLargeBuffersAreNotKept(t *testing.T) {
	told := 0
	tree := newTree(t, Config{Changed: func(changes []Fact) { told += len(changes) }})
	tree.Record(1, chainOf(t, 1, 3*maxKeptFacts*maxSpan), start, nil)
	if told <= maxKeptFacts {
		t.Fatalf("%d changes, within the bound", told)
	}
	for range 10 {
		if b := tree.buffer(); cap(*b) > maxKeptFacts {
			t.Fatalf("a buffer for %d facts is kept", cap(*b))
		}
	}
}
