package prefixtree

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

const start Time = 1_700_000_000_000

func newTree(t testing.TB, cfg Config) *Tree {
	t.Helper()
	tree, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func newHasher(t testing.TB) *Hasher {
	t.Helper()
	h, err := NewHasher([]byte("test secret"), DefaultBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// chainOf returns a chain of n blocks; chains with one seed are prefixes of each other.
func chainOf(t testing.TB, seed uint64, n int) []Hash {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = seed<<32 | uint64(i)
	}
	return FromKeys(nil, newHasher(t), nil, keys)
}

func holderOf(tree *Tree, b Backend, chain []Hash, now Time) (Holder, bool) {
	var m Matches
	tree.Match(&m, chain, now)
	for _, h := range m.Holders() {
		if h.Backend == b {
			return h, true
		}
	}
	return Holder{Backend: b}, false
}

func TestMatchDepths(t *testing.T) {
	for _, total := range []int{1, 2, 7, 8, 9, 16, 17, 19, 20, 21, 63, 64, 255, 256, 257, 1000} {
		tree := newTree(t, Config{})
		chain := chainOf(t, 1, total)
		depths := map[Backend]int{}
		for depth := 1; depth <= total; depth += max(1, total/60) {
			b := Backend(len(depths))
			depths[b] = depth
			tree.Record(b, chain[:depth], start, nil)
		}
		var m Matches
		tree.Match(&m, chain, start+1)
		if len(m.Holders()) != len(depths) {
			t.Fatalf("total %d: %d holders, want %d", total, len(m.Holders()), len(depths))
		}
		for _, h := range m.Holders() {
			want := depths[h.Backend]
			if int(h.Blocks) != want || int(h.Fresh) != want || h.Expected != float32(want) || h.Age != time.Millisecond {
				t.Errorf("total %d backend %d: %+v, want %d blocks", total, h.Backend, h, want)
			}
		}
	}
}

func TestMatchAnchorsOnly(t *testing.T) {
	for depth := 1; depth <= 70; depth++ {
		local, remote := newTree(t, Config{}), newTree(t, Config{})
		chain := chainOf(t, 1, 80)
		for _, f := range local.AppendFacts(nil, 5, chain[:depth], start) {
			if !remote.Apply(f) || remote.Apply(f) {
				t.Fatal("a new fact must change the tree once")
			}
		}
		if h, _ := holderOf(remote, 5, chain, start); int(h.Blocks) != depth {
			t.Errorf("terminal anchor at %d: matched %d blocks", depth, h.Blocks)
		}
	}
}

func TestHorizonWeighsExpected(t *testing.T) {
	tree := newTree(t, Config{Horizon: 10 * time.Second})
	chain := chainOf(t, 1, 100)
	tree.Record(3, chain, start, nil)
	tree.Record(3, chain[:40], start+10_000, nil)
	for _, c := range []struct {
		after    Time
		blocks   int32
		fresh    int32
		expected float32
	}{
		{10_000, 100, 100, 100},
		{10_500, 100, 40, 40 + 60*.5},
		{11_000, 100, 40, 40},
		{30_000, 100, 0, 0},
		{30_001, 40, 0, 0},
	} {
		h, _ := holderOf(tree, 3, chain, start+c.after)
		if h.Blocks != c.blocks || h.Fresh != c.fresh || math.Abs(float64(h.Expected-c.expected)) > .01 {
			t.Errorf("after %d ms: %+v, want %+v", c.after, h, c)
		}
	}
	if _, ok := holderOf(tree, 3, chain, start+40_001); ok {
		t.Error("matched past retention")
	}
}

func TestFirstGenerationKeepsFacts(t *testing.T) {
	for name, c := range map[string]struct {
		heard []uint32
		kept  bool
	}{
		"nothing heard": {nil, true}, "the same": {[]uint32{3}, true}, "the next": {[]uint32{4}, true}, "both": {[]uint32{4, 3}, true},
		"an older one": {[]uint32{2}, false}, "an older one and the same": {[]uint32{2, 3}, false}, "the same and an older one": {[]uint32{3, 2}, false},
	} {
		tree, source := newTree(t, Config{MaxBackends: 4}), newTree(t, Config{})
		own, others := chainOf(t, 1, 30), chainOf(t, 2, 10)
		tree.Record(1, own, start, nil)
		unaware := tree.AppendFacts(nil, 1, own[:20], start+5)
		source.Record(1, others, start+1, nil)
		for i, generation := range c.heard {
			for _, f := range source.AppendFacts(nil, 1, others, start+1) {
				f.Generation, f.Time = generation, f.Time+Time(i)
				tree.Apply(f)
			}
		}
		tree.SetGeneration(1, 3, start+10)
		tree.SetGeneration(1, 2, start+10)
		tree.SetGeneration(4, 1, start)
		if _, ok := holderOf(tree, 1, own, start+10); ok != c.kept {
			t.Errorf("%s: kept %v", name, ok)
		}
		if f := tree.AppendFacts(nil, 1, own, start+5); f[0].Generation != 3 {
			t.Errorf("%s: sent as of generation %d", name, f[0].Generation)
		}
		for _, f := range unaware {
			f.Time += 10
			if f.Generation != 0 || !tree.Apply(f) {
				t.Fatalf("%s: refused a fact of an unknown generation: %+v", name, f)
			}
			if f.Generation, f.Time = 2, f.Time+10; tree.Apply(f) {
				t.Fatalf("%s: took a fact of an old generation", name)
			}
		}
		tree.SetGeneration(1, 4, start+30)
		if h, ok := holderOf(tree, 1, own, start+30); ok && !slices.Contains(c.heard, 4) {
			t.Errorf("%s: the next generation keeps %+v", name, h)
		}
	}
}

func TestResetForgetsABackend(t *testing.T) {
	tree := newTree(t, Config{Horizon: time.Minute, MaxBackends: 4})
	before := tree.Horizon(1)
	old, chain := chainOf(t, 1, 30), chainOf(t, 2, 10)
	tree.SetGeneration(1, 7, start)
	tree.SetCapacity(1, 100)
	tree.SetPeerLRUDistance(1, 5_000, 10)
	tree.Record(1, old, start, nil)
	late := tree.AppendFacts(nil, 1, old, start)
	tree.Record(2, old, start, nil)
	tree.Reset(1)
	tree.Reset(4)
	if h, ok := holderOf(tree, 1, old, start); ok {
		t.Errorf("it holds %+v", h)
	}
	if _, ok := holderOf(tree, 2, old, start); !ok {
		t.Error("another backend was reset")
	}
	if got := tree.Horizon(1); got != before {
		t.Errorf("a horizon of %v, %v at first", got, before)
	}
	for _, f := range late {
		if tree.Apply(f) {
			t.Fatalf("took %+v", f)
		}
	}
	tree.Record(1, chain, start+10, nil)
	tree.SetGeneration(1, 1, start+20)
	if h, _ := holderOf(tree, 1, chain, start+20); h.Blocks != 10 {
		t.Errorf("of the next engine: %+v", h)
	}
}

func TestFactsAheadOfTheirGeneration(t *testing.T) {
	for name, c := range map[string]struct {
		told, set []uint32
		after     Time // announcement after the facts, ms
		want      int
	}{
		"the membership is late":        {told: []uint32{2}, set: []uint32{2}, want: 10},
		"two are under way":             {told: []uint32{3}, set: []uint32{2, 3}, want: 10},
		"one is behind the other":       {told: []uint32{2, 3}, set: []uint32{3}, want: 10},
		"nobody has told":               {set: []uint32{2}},
		"of the one before":             {told: []uint32{2}, set: []uint32{3}},
		"the next but one":              {told: []uint32{2}, set: []uint32{2, 3}},
		"long ago":                      {told: []uint32{1000}, set: []uint32{2}, after: 61_000},
		"of the present one, by chance": {told: []uint32{1}, set: []uint32{2}},
	} {
		tree := newTree(t, Config{})
		before, chain := chainOf(t, 1, 30), chainOf(t, 2, 10)
		tree.SetGeneration(1, 1, start)
		tree.Record(1, before, start+10, nil)
		source := newTree(t, Config{})
		source.Record(1, chain, start+110, nil)
		for i, gen := range c.told {
			for _, f := range source.AppendFacts(nil, 1, chain, start+200) {
				f.Generation, f.Time = gen, f.Time-Time(len(c.told)-1-i)
				tree.Apply(f)
			}
		}
		at := start + 500 + c.after
		for _, gen := range c.set {
			tree.SetGeneration(1, gen, at)
		}
		if h, _ := holderOf(tree, 1, chain, at); int(h.Blocks) != c.want {
			t.Errorf("%s: %d blocks of the new generation", name, h.Blocks)
		}
		if _, ok := holderOf(tree, 1, before, at); ok {
			t.Errorf("%s: a new generation keeps old facts", name)
		}
		if b := tree.ledgers[1].usage.since(start); c.want == 0 && b > 0 || c.want > 0 && b > 10 {
			t.Errorf("%s: %v blocks are counted as used since", name, b)
		}
	}
}

func TestGenerationFencesAfterTheClockWasSetBack(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 30)
	tree.SetGeneration(1, 1, start)
	tree.Record(1, chain, start+150_000, nil)
	tree.SetGeneration(1, 2, start)
	if h, ok := holderOf(tree, 1, chain, start); ok {
		t.Errorf("of the generation before: %+v", h)
	}
	tree.Record(1, chain[:10], start+1, nil)
	if h, _ := holderOf(tree, 1, chain, start+1); h.Blocks != 10 {
		t.Errorf("of this generation: %+v", h)
	}
}

func TestRevertBringsNothingBackFromBehindAFence(t *testing.T) {
	tree, peer := newTree(t, Config{}), newTree(t, Config{})
	chain, other := chainOf(t, 1, 30), chainOf(t, 2, 30)
	tree.SetGeneration(1, 1, start)
	peer.SetGeneration(1, 1, start)
	tree.Record(1, chain, start+10, nil)
	tr := new(TouchHistory)
	tree.Record(1, chain, start+100, tr)
	peer.SetGeneration(1, 2, start+5) // knows nothing to fence
	facts := peer.RecordNews(1, other, start+50, nil, nil)
	again := peer.RecordNews(1, chain, start+100, nil, nil)
	for _, f := range append(facts, again...) {
		tree.Apply(f)
	}
	tree.SetGeneration(1, 2, start+200)
	if h, _ := holderOf(tree, 1, chain, start+200); h.Blocks != 30 {
		t.Fatalf("what was placed on the new process: %+v", h)
	}
	_, news := tree.RevertNews(1, chain, tr, nil)
	if len(news) == 0 {
		t.Fatal("nothing is told")
	}
	for _, f := range news {
		peer.Apply(f)
	}
	for _, x := range []*Tree{tree, peer} {
		if h, ok := holderOf(x, 1, chain, start+200); ok {
			t.Errorf("believed after the revert: %+v", h)
		}
	}
}

func TestGenerationAndForgetFence(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 30)
	tree.SetGeneration(1, 1, start)
	tree.Record(1, chain, start, nil)
	if _, ok := holderOf(tree, 1, chain, start); !ok {
		t.Fatal("the first generation must not fence a placement of the same millisecond")
	}
	facts := tree.AppendFacts(nil, 1, chain, start+5)
	tree.SetGeneration(1, 2, start+10)
	if _, ok := holderOf(tree, 1, chain, start+10); ok {
		t.Error("a new generation keeps old facts")
	}
	for _, f := range facts {
		if tree.Apply(f) {
			t.Fatal("took a fact of an old generation")
		}
	}
	tree.Record(1, chain[:10], start+10, nil)
	tree.SetGeneration(1, 1, start+20)
	tree.SetGeneration(1, 2, start+20)
	if h, _ := holderOf(tree, 1, chain, start+20); h.Blocks != 10 {
		t.Errorf("old or equal generation fenced: %+v", h)
	}
	tree.Forget(1, start+30)
	if _, ok := holderOf(tree, 1, chain, start+30); ok {
		t.Error("Forget keeps facts")
	}
	if tree.Apply(Fact{Hash: chain[0], Backend: 1, Generation: 2, Time: start + 29}) {
		t.Error("a late fact came back from behind the fence")
	}
	tree.Record(1, chain[:5], start+30, nil)
	if h, _ := holderOf(tree, 1, chain, start+30); h.Blocks != 5 {
		t.Errorf("a placement after the fence, in its millisecond, is lost: %+v", h)
	}
}

func TestDropAndRevert(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 50)
	tree.Record(1, chain[:20], start, nil)
	tree.Record(2, chain, start, nil)
	var tr TouchHistory
	tree.Record(1, chain, start+1000, &tr)
	if tr.depth() != 20 {
		t.Fatalf("history %+v", tr)
	}
	if n := tree.Revert(1, chain, &tr); n != 30 {
		t.Errorf("reverted %d blocks", n)
	}
	if h, _ := holderOf(tree, 1, chain, start+1000); h.Blocks != 20 || h.Age != time.Second {
		t.Errorf("after revert: %+v", h)
	}
	tree.Drop(1, chain, 7, maxTime)
	if h, _ := holderOf(tree, 1, chain, start+1000); h.Blocks != 7 {
		t.Errorf("after drop: %+v", h)
	}
	if h, _ := holderOf(tree, 2, chain, start+1000); h.Blocks != 50 {
		t.Errorf("another backend was dropped: %+v", h)
	}
	if st := tree.Stats(); st.Facts != 57 || st.Retracted != 43 {
		t.Errorf("stats %+v", st)
	}
}

// Reverting a late Record does not make a hole in the chain look young.
func TestRevertAboveALaterTouch(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 10)
	tree.Record(1, chain, start+2_000, nil)
	tree.Drop(1, chain[:2], 0, start+2_000)
	var tr TouchHistory
	tree.Record(1, chain, start, &tr)
	tree.Forget(1, start+1_000)
	if n, news := tree.RevertNews(1, chain, &tr, nil); n != 0 || len(news) != 0 {
		t.Errorf("%d went, news %+v", n, news)
	}
	if h, ok := holderOf(tree, 1, chain[:2], start+2_000); ok {
		t.Errorf("back from behind the fence: %+v", h)
	}
}

func TestOutOfRangeIsRefused(t *testing.T) {
	tree := newTree(t, Config{MaxBackends: 4})
	chain := chainOf(t, 1, 3)
	var tr TouchHistory
	tree.Record(4, chain, start, &tr)
	tree.Learn(4, chain, &tr, 1, start)
	tree.Drop(4, chain, 0, maxTime)
	tree.Forget(4, start)
	tree.SetGeneration(4, 1, start)
	tree.SetCapacity(4, 1)
	if tree.Apply(Fact{Hash: 1, Backend: 4, Time: start}) || tree.Apply(Fact{Backend: 1, Time: start}) {
		t.Error("took a fact that names nothing")
	}
	if st := tree.Stats(); st.Facts != 0 || st.Refused != 4 {
		t.Errorf("stats %+v", st)
	}
	for _, cfg := range []Config{{MaxBackends: 70_000}, {Budget: 1000}, {Horizon: time.Millisecond}, {Budget: -1}} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
}
