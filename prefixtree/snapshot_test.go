package prefixtree

import (
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
)

func take(t testing.TB, from *Tree, now Time, limit int) (to *Tree, pages, records, size int) {
	t.Helper()
	to = newTree(t, Config{Budget: 1 << 30})
	from.Snapshot(now, oneToOne{}, limit, func(page []byte, n int) bool {
		applied, err := to.ApplyDelta(page, oneToOne{}, 0, now)
		if err != nil || applied.Records != n || len(page) > limit {
			t.Fatalf("%d bytes, %+v of %d records: %v", len(page), applied, n, err)
		}
		pages, records, size = pages+1, records+n, size+len(page)
		return true
	})
	return to, pages, records, size
}

func TestSnapshot(t *testing.T) {
	tree := newTree(t, Config{Horizon: time.Minute})
	for i := range 400 {
		chain := chainOf(t, uint64(i/3), 5+i%90) // every third chain extends the one before
		tree.Record(Backend(i%50), chain, start+Time(i*100), nil)
	}
	tree.Record(60, chainOf(t, 1000, 20), start, nil)
	tree.Forget(60, start+5)
	now := start + 40_000
	for _, limit := range []int{MinPayload, 1000, 64 << 10, 1 << 30} {
		to, _, records, _ := take(t, tree, now, max(MinPayload, min(limit, MaxPayload)))
		want := heldBy(tree, now)
		if got := heldBy(to, now); !maps.Equal(got, want) || records != len(want)+1 {
			t.Errorf("limit %d: %d anchors of %d, %d records: %s", limit, len(got), len(want), records, difference(got, want))
		}
		if to.Apply(Fact{Hash: 1, Backend: 60, Time: start + 5}) || !to.Apply(Fact{Hash: 1, Backend: 60, Time: start + 6}) {
			t.Error("the fence did not come over")
		}
	}
	tree.Snapshot(now, keyedUpTo(0), 1000, func(page []byte, n int) bool { t.Errorf("%d records", n); return true })
	newTree(t, Config{}).Snapshot(now, oneToOne{}, 1000, func([]byte, int) bool { t.Error("a page of nothing"); return true })
}

func TestSnapshotIsNewestFirst(t *testing.T) {
	tree := newTree(t, Config{})
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3_000 {
		tree.Record(Backend(i%50), chainOf(t, uint64(i+1), 40), start+Time(r.IntN(600_000)), nil)
	}
	now, seen, oldest := start+600_000, 0, Time(0)
	tree.Snapshot(now, oneToOne{}, 8<<10, func(page []byte, n int) bool {
		facts, _, err := decode(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range facts {
			age := now - f.Time
			if age < oldest-oldest/32-1 {
				t.Fatalf("fact %d, %d ms old, after one of %d ms", seen, age, oldest)
			}
			oldest = max(oldest, age)
			seen++
		}
		return seen < 50_000
	})
	if seen < 50_000 || seen > 52_000 {
		t.Errorf("went on to %d facts after being told to stop", seen)
	}
}

// More facts of one time than fit a stratum are all sent.
func TestSnapshotOfOneMillisecond(t *testing.T) {
	const most = 1000
	tree := newTree(t, Config{})
	fillKind(t, tree, "unique", 20_000) // about a quarter are anchors
	got, size := replay{held{}, new(retractions)}, 0
	p := pages{t: tree, now: start + 1000, most: most, w: encoder{limit: 4 << 10, names: oneToOne{}}}
	p.yield = func(page []byte, _ int) bool {
		facts, _, err := decode(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range facts {
			got.tell(f)
		}
		size += len(page)
		return true
	}
	p.all()
	if want := heldBy(tree, start+1000); !maps.Equal(got.held, want) || len(want) < 5*most {
		t.Errorf("%d facts of %d", len(got.held), len(want))
	}
	if cap(p.stratum) > most+most/8 {
		t.Errorf("collected %d facts at once", cap(p.stratum))
	}
	if perFact := float64(size) / float64(len(got.held)); perFact > 8.2 {
		t.Errorf("%.2f bytes a fact", perFact)
	}
}

func TestAnchors(t *testing.T) {
	for _, shape := range []struct{ chains, blocks int }{{3_000, 8}, {100, 250}} {
		tree := newTree(t, Config{Horizon: time.Minute})
		for i := range shape.chains {
			tree.Record(Backend(i%7), chainOf(t, uint64(i+1), shape.blocks), start+Time(i), nil)
		}
		tree.Forget(3, start+4_000) // dead, and not yet swept
		now := start + 4_000
		want, _ := tree.FactDigest(now, 0, maxTime, oneToOne{})
		if got := tree.Anchors(now); got != int(want) || got < 5_000 {
			t.Errorf("%+v: %d anchors, there are %d", shape, got, want)
		}
		if got := tree.estimateAnchors(now, 4_000); math.Abs(float64(got)/float64(want)-1) > .1 {
			t.Errorf("%+v: %d anchors by a sample, there are %d", shape, got, want)
		}
		if got := tree.Anchors(now + 10*60_000); got != 0 {
			t.Errorf("%+v: %d anchors when all have expired", shape, got)
		}
	}
	if got := newTree(t, Config{}).Anchors(start); got != 0 {
		t.Errorf("%d anchors in an empty tree", got)
	}
}

func TestAgeClasses(t *testing.T) {
	last := 0
	for age := Time(0); age <= maxAge; age += 1 + age/100 {
		c := ageClass(age)
		if c < last || c >= ageClasses {
			t.Fatalf("age %d: class %d after %d, of %d", age, c, last, ageClasses)
		}
		if a := classAge(c); a > age || ageClass(a) != c || a > 0 && ageClass(a-1) != c-1 {
			t.Fatalf("class %d of age %d begins at %d", c, age, a)
		}
		last = c
	}
	for _, age := range []Time{-1, -1 << 44, maxAge, maxTime} {
		if c := ageClass(age); c < 0 || c >= ageClasses {
			t.Errorf("age %d: class %d", age, c)
		}
	}
}

func TestSnapshotBesideWriters(t *testing.T) {
	seed := virtual.Seed(t)
	tree := newTree(t, Config{Budget: 64 << 20})
	const quiet = Backend(100)
	for i := range 3_000 {
		tree.Record(quiet, chainOf(t, uint64(i+1), 30), start+Time(i*50), nil)
	}
	now := start + 200_000
	want := held{}
	for p, at := range heldBy(tree, now) {
		want[p] = at
	}
	var chains [8][]Hash
	for i := range chains {
		chains[i] = chainOf(t, uint64(i+1), 30)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for at := now; !stop.Load(); at++ {
				writeSomething(tree, r, chains[:], 40, 30, at)
			}
		})
	}
	for range 3 {
		got := held{}
		tree.Snapshot(now, oneToOne{}, 16<<10, func(page []byte, _ int) bool {
			facts, _, err := decode(page)
			if err != nil {
				t.Error(err)
			}
			for _, f := range facts {
				if p := (spot{f.Hash, f.Backend}); f.Backend == quiet {
					if _, twice := got[p]; twice {
						t.Errorf("%+v comes twice", p)
					}
					got[p] = f.Time
				}
			}
			return true
		})
		if !maps.Equal(got, want) {
			t.Errorf("%d of %d facts: %s", len(got), len(want), difference(got, want))
		}
	}
	stop.Store(true)
	wg.Wait()
	checkShards(t, tree)
}
