package prefixtree

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

func TestBudgetIsHeld(t *testing.T) {
	bubble.SkipInRace(t)
	for name, holders := range map[string]int{"unique": 1, "pairs": 2, "shared by 50": 50} {
		t.Run(name, func(t *testing.T) {
			const budget, blocks = 1 << 20, 100
			tree := newTree(t, Config{Budget: budget, MaxBackends: 64, Horizon: 24 * time.Hour})
			var chains [][]Hash
			facts := 0
			for facts < 150_000 {
				chain := chainOf(t, uint64(len(chains)+1), blocks)
				chains = append(chains, chain)
				for b := range holders {
					tree.Record(Backend(b), chain, start+Time(len(chains)), nil)
					facts += blocks
					if st := tree.Stats(); st.Bytes > budget {
						t.Fatalf("%d bytes after %d facts, budget %d", st.Bytes, facts, budget)
					}
				}
			}
			st := tree.Stats()
			if st.Refused > 0 || st.Facts+int64(st.Evicted) != int64(facts) {
				t.Errorf("of %d facts: %+v", facts, st)
			}
			if perFact := float64(st.Bytes) / float64(st.Facts); perFact > 32 {
				t.Errorf("%.1f bytes per fact at the budget", perFact)
			}
			kept := int(st.Facts) / blocks / holders
			now := start + Time(len(chains))
			for i, chain := range chains {
				h, _ := holderOf(tree, 0, chain, now)
				switch age := len(chains) - i; {
				case age < kept*8/10 && h.Blocks != blocks:
					t.Fatalf("chain %d of age %d lost blocks: %d (%d fit)", i, age, h.Blocks, kept)
				case age > kept*12/10+2 && h.Blocks != 0:
					t.Fatalf("chain %d of age %d is still there: %d blocks (%d fit)", i, age, h.Blocks, kept)
				}
			}
			checkShards(t, tree)
		})
	}
}

func TestBudgetEvictsTailsFirst(t *testing.T) {
	tree := newTree(t, Config{Budget: 1 << 20, MaxBackends: 64, Horizon: 24 * time.Hour})
	chain := chainOf(t, 1, 100)
	tree.Record(1, chain, start, nil)
	for i := range 1500 {
		now := start + Time(1+i)
		tree.Record(1, chain[:60], now, nil)
		tree.Record(2, chainOf(t, uint64(i+2), 50), now, nil)
	}
	if h, _ := holderOf(tree, 1, chain, start+1500); h.Blocks != 60 {
		t.Errorf("%d blocks left, want the 60 in use", h.Blocks)
	}
}

// One call may exceed the budget with facts of one time.
func TestBudgetEvictsAmongEqualTimes(t *testing.T) {
	tree := newTree(t, Config{Budget: 1 << 20, MaxBackends: 64})
	tree.Record(1, chainOf(t, 1, 70_000), start, nil)
	st := tree.Stats()
	if st.Bytes > 1<<20 || st.Refused > 0 || st.Facts < 30_000 {
		t.Errorf("%+v", st)
	}
	checkShards(t, tree)
}

func TestSweepGivesMemoryBack(t *testing.T) {
	tree := newTree(t, Config{Budget: 8 << 20, MaxBackends: 64, Horizon: time.Minute})
	for i := range 200 {
		chain := chainOf(t, uint64(i+1), 100)
		tree.Record(1, chain, start, nil)
		tree.Record(2, chain, start, nil)
	}
	full := tree.Stats()
	tree.Forget(1, start)
	later := start + 4*60_000 // past retention
	few := chainOf(t, 1<<20, 2_000)
	for i := range 60 { // two turns of the sweep
		tree.Record(3, few, later+Time(i)*2_000, nil)
	}
	st := tree.Stats()
	if st.Facts > 2_200 || st.Expired < 39_800 || st.Bytes > full.Bytes/3 {
		t.Errorf("full %+v, swept %+v", full, st)
	}
	checkShards(t, tree)
}

func TestWidestBlock(t *testing.T) {
	cfg := Config{MaxBackends: 1024, Budget: 64 << 10}
	tree := newTree(t, cfg)
	chain := chainOf(t, 1, 3)
	for b := range cfg.MaxBackends {
		tree.Record(Backend(b), chain, start, nil)
	}
	var m Matches
	tree.Match(&m, chain, start)
	if len(m.Holders()) != cfg.MaxBackends || tree.Stats().Refused > 0 {
		t.Errorf("%d holders, %+v", len(m.Holders()), tree.Stats())
	}
	for _, h := range m.Holders() {
		if h.Blocks != 3 {
			t.Fatalf("%+v", h)
		}
	}
	checkShards(t, tree)
}

func TestEqualHomesCluster(t *testing.T) {
	tree := newTree(t, Config{MaxBackends: 8, Budget: 1 << 20})
	r := rand.New(rand.NewPCG(1, 1))
	keys := map[Hash]bool{}
	for range 2000 {
		h := Hash(r.Uint64N(4096) + 1) // home slot 0, and the last slot, to wrap around
		if r.IntN(2) == 0 {
			h = ^h
		}
		if r.IntN(3) == 0 {
			tree.Drop(1, []Hash{h}, 0, maxTime)
			delete(keys, h)
		} else {
			tree.Record(1, []Hash{h}, start, nil)
			keys[h] = true
		}
	}
	checkShards(t, tree)
	for h := Hash(1); h <= 4097; h++ {
		for _, k := range []Hash{h, ^h} {
			if _, ok := holderOf(tree, 1, []Hash{k}, start); ok != keys[k] {
				t.Fatalf("key %x: found %v", k, ok)
			}
		}
	}
}

func TestLayout(t *testing.T) {
	var tb table
	for _, v := range []any{tb.slots, tb.arena} {
		if k := reflect.TypeOf(v).Elem().Kind(); k != reflect.Uint64 {
			t.Errorf("array of %v", k)
		}
	}
	if n := reflect.TypeFor[table]().Size(); n != 64 {
		t.Errorf("table header of %d bytes, want one cache line", n)
	}
	if n := reflect.TypeFor[limits]().Size(); n != 16 {
		t.Errorf("limits of %d bytes", n)
	}
	e := makeEntry(65535, maxTime, entryFlags)
	if e&spanTag != 0 || entryBackend(e) != 65535 || entryTime(e) != maxTime || e&entryAnchor == 0 || entrySpan(e) != maxSpan {
		t.Errorf("entry %x", e)
	}
	s := makeSpan(1<<32-1, 65535, classCount-1)
	if spanOffset(s) != 1<<32-1 || spanCount(s) != 65535 || spanClass(s) != classCount-1 || s&spanTag == 0 {
		t.Errorf("span %x", s)
	}
	if len(classSizes) != classCount || classSizes[classFor(65535)] < 65535 {
		t.Errorf("classes %v", classSizes)
	}
}
