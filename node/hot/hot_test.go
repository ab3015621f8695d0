package hot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
)

const t0 = prefixtree.Time(1_700_000_000_000)

func TestSize(t *testing.T) {
	w := func(prefill, active float64) demand.Work {
		return demand.Work{Anchor: 1, Tokens: 8000, Prefill: prefill, Active: active}
	}
	for _, c := range []struct {
		name     string
		w, all   demand.Work
		backends int
		want     int
	}{
		{"work alone, as measured once: 2.61 in the room of 0.31", w(2.61, 0), w(2.61+16*0.49, 0), 16, 9},
		{"nothing else to do", w(1.7, 0), w(1.7, 0), 16, 3},
		{"twice its share of the requests", w(0.1, 10), w(0.5, 160), 120, 15},
		{"half of all requests: everywhere", w(2, 100), w(9, 200), 16, 16},
		{"a fleet that has no room", w(3, 10), w(16, 200), 16, 16},
		{"rates learned too low", w(8, 0), w(64, 0), 16, 16},
		{"nothing", w(0, 0), w(0, 0), 16, 1},
		{"more of it than of all", w(1, 10), w(0, 0), 16, 2},
	} {
		n := Size(c.w, c.all, c.backends)
		if n.Replicas != c.want {
			t.Errorf("%s: %+v, want %d", c.name, n, c.want)
		}
		if why := n.Why(); strings.Contains(why, "NaN") {
			t.Errorf("%s: why: %s", c.name, why)
		}
	}
}

func TestMoreWorkIsNoFewerReplicas(t *testing.T) {
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 1))
	for range 5000 {
		b := 2 + rnd.IntN(300)
		w := demand.Work{Tokens: 4000, Prefill: rnd.Float64() * 10, Active: rnd.Float64() * 100}
		all := demand.Work{Prefill: w.Prefill + rnd.Float64()*20, Active: w.Active + rnd.Float64()*500}
		more, moreAll := w, all
		extra := rnd.Float64() * 50
		more.Active, moreAll.Active = w.Active+extra, all.Active+extra
		if a, b := Size(w, all, b), Size(more, moreAll, b); a.Replicas > b.Replicas {
			t.Fatalf("%+v of %+v needs %+v, with %v more requests %+v", w, all, a, extra, b)
		}
	}
}

type fleet struct {
	t       *testing.T
	sizer   *Sizer
	pool    policy.PoolSize
	agreed  []Prefix
	now     prefixtree.Time
	changes []prefixtree.Time
}

func newFleet(t *testing.T) *fleet {
	return &fleet{t: t, sizer: new(Sizer), pool: policy.PoolSize{Backends: 16}, now: t0}
}

func (f *fleet) replicas() int {
	if len(f.agreed) == 0 {
		return 0
	}
	return f.agreed[0].Replicas
}

func (f *fleet) step(active, all float64) {
	f.t.Helper()
	f.now += Every
	sum := Sum{}
	for range 2 {
		sum.Add([]demand.Work{{Requests: all / 4, Prefill: all / 100, Active: all / 2}, {Anchor: 5, Tokens: 8000, Requests: active / 4, Fresh: active / 4, Prefill: active / 100, Active: active / 2}})
	}
	if active == 0 {
		delete(sum, Key{0, 5})
	}
	for _, c := range f.sizer.Decide(f.now, []policy.PoolSize{f.pool}, sum, f.agreed) {
		if c.Anchor != 5 || c.Tokens != 8000 {
			f.t.Fatalf("change of %x, %d tokens", c.Anchor, c.Tokens)
		}
		before := f.replicas()
		switch {
		case c.Remove:
			f.agreed = nil
		case len(f.agreed) == 0:
			f.agreed = []Prefix{{c.HotPrefix, f.now, f.now, c.Expires}}
		default:
			p := &f.agreed[0]
			if p.Replicas != c.Replicas {
				p.Changed = f.now
			}
			p.HotPrefix, p.Expires = c.HotPrefix, c.Expires
		}
		if f.replicas() != before {
			f.changes = append(f.changes, f.now)
		}
		if !c.Remove && (c.Replicas < 1 || c.Replicas > f.pool.Backends || c.Expires <= f.now) {
			f.t.Fatalf("change %+v", c)
		}
	}
	if len(f.agreed) > 0 && f.now >= f.agreed[0].Expires {
		f.t.Fatalf("what is in use has expired")
	}
}

// until makes decisions until the set has a size.
func (f *fleet) until(what string, seconds int, active float64, want int) {
	f.t.Helper()
	from := f.now
	for f.replicas() != want {
		if f.step(active, 160); f.now-from > prefixtree.Time(seconds)*1000 {
			f.t.Fatalf("%s: after %d s %d replicas, want %d", what, seconds, f.replicas(), want)
		}
	}
}

func TestSetHasItsSizeInTime(t *testing.T) {
	f := newFleet(t)
	f.until("hot", 15, 20, 4)
	f.until("twice as hot", 10, 40, 8)
	for range 200 {
		f.step(40, 160)
	}
	if len(f.changes) != 2 {
		t.Fatalf("changed at %v", f.changes)
	}
	f.until("a quarter as hot", 120, 10, 3)
	f.until("without requests", 125, 0, 0)
	f.step(0, 160)
	if len(f.agreed) != 0 {
		t.Errorf("without requests, and agreed on: %+v", f.agreed)
	}
}

func TestSetDoesNotFlap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 2))
	for _, scatter := range []float64{0.1, 0.3} {
		for range 40 {
			f := newFleet(t)
			mean := 2 + 78*rnd.Float64()
			for range 720 {
				f.step(mean*(1+scatter*(2*rnd.Float64()-1)), 160)
			}
			if len(f.changes) > 6 {
				t.Errorf("around %.1f: %d changes in an hour", mean, len(f.changes))
			}
		}
	}
}

func TestFewRequestsMoveLittle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 3))
	changes := 0
	for range 20 {
		f, n := newFleet(t), 0.0
		for i := range 720 {
			if i%24 == 0 {
				n = 0.4 + 0.4*rnd.Float64()
			}
			f.step(n, 6)
		}
		changes += len(f.changes)
	}
	if changes < 20 || changes > 20*3 {
		t.Errorf("%d changes in 20 hours, want at least one and at most 3 in each", changes)
	}
}

// A new leader looks for a minute before it shrinks a set, and lets unreported ones expire.
func TestNewLeader(t *testing.T) {
	f := newFleet(t)
	f.until("hot", 15, 40, 8)
	f.now += 30_000
	f.sizer = new(Sizer)
	from := f.now
	f.until("cooler, with a new leader", 70, 12, 4)
	if f.now-from < looksLoose*Every {
		t.Errorf("%d replicas after %d ms", f.replicas(), f.now-from)
	}
	z := new(Sizer)
	p := f.agreed
	if c := z.Decide(p[0].Expires-1, []policy.PoolSize{f.pool}, Sum{}, p); len(c) != 0 {
		t.Errorf("not expired: %+v", c)
	}
	if c := z.Decide(p[0].Expires, []policy.PoolSize{f.pool}, Sum{}, p); len(c) != 1 || !c[0].Remove || c[0].Anchor != 5 {
		t.Errorf("expired: %+v", c)
	}
}

func TestClocksDiffer(t *testing.T) {
	for _, ahead := range []prefixtree.Time{-3_600_000, 3_600_000} {
		for _, sameLeader := range []bool{false, true} {
			f := newFleet(t)
			for range 20 {
				f.step(40, 160)
			}
			f.now += ahead
			if !sameLeader {
				f.sizer = new(Sizer)
			}
			for range 24 {
				f.step(12, 160)
			}
			if r := f.replicas(); r < 3 || r > 5 || f.agreed[0].Expires > f.now+lifetime {
				t.Errorf("clock ahead by %d ms, the same leader: %v: %+v", ahead, sameLeader, f.agreed)
			}
			f.until("without requests", 125, 0, 0)
		}
	}
}

func TestPrefixOfTwoPools(t *testing.T) {
	var z Sizer
	var agreed []Prefix
	pools := []policy.PoolSize{{Pool: 1, Backends: 16}, {Pool: 9, Backends: 8}}
	for i := range 100 {
		now := t0 + prefixtree.Time(i*Every)
		sum := Sum{}
		sum.Add([]demand.Work{{Pool: 1, Requests: 50, Active: 100}, {Pool: 1, Anchor: 5, Tokens: 8000, Requests: 0.01, Active: 0.1}})
		sum.Add([]demand.Work{{Pool: 9, Requests: 50, Active: 100}, {Pool: 9, Anchor: 5, Tokens: 8000, Requests: 12, Fresh: 12, Active: 25}})
		for _, c := range z.Decide(now, pools, sum, agreed) {
			if c.Remove || c.Replicas != 4 {
				t.Fatalf("look %d: %+v", i, c)
			}
			agreed = []Prefix{{c.HotPrefix, now, now, c.Expires}}
		}
	}
	if len(agreed) != 1 {
		t.Error("nothing is agreed on")
	}
}

func TestConversationsAreNotHot(t *testing.T) {
	for _, fresh := range []float64{0, enterFresh / 2, enterFresh} {
		var z Sizer
		sum := Sum{}
		sum.Add([]demand.Work{{Requests: 20, Active: 100}, {Anchor: 5, Tokens: 32000, Requests: 10, Fresh: fresh, Prefill: 5, Active: 50}})
		var changes int
		for i := range 20 {
			changes += len(z.Decide(t0+prefixtree.Time(i*Every), []policy.PoolSize{{Backends: 16}}, sum, nil))
		}
		if hot := fresh >= enterFresh; hot != (changes > 0) {
			t.Errorf("with %v fresh requests a second: %d changes", fresh, changes)
		}
	}
}

func TestManyPrefixes(t *testing.T) {
	sum := Sum{}
	works := []demand.Work{{Pool: 3, Requests: 300, Prefill: 120, Active: 300}}
	for i := range 200 {
		works = append(works, demand.Work{Pool: 3, Anchor: prefixtree.Hash(i + 1), Tokens: 4000, Requests: 1, Fresh: 1, Prefill: 0.3 + float64(i)/1000, Active: 1})
	}
	works = append(works, demand.Work{Pool: 3, Anchor: 999, Tokens: leastTokens - 1, Requests: 9, Fresh: 9, Prefill: 9, Active: 9})
	sum.Add(works)
	var z Sizer
	var agreed []Prefix
	for i := range 4 {
		now := t0 + prefixtree.Time(i*Every)
		for _, c := range z.Decide(now, []policy.PoolSize{{Pool: 3, Backends: 400}, {Pool: 4, Backends: 0}}, sum, agreed) {
			agreed = append(agreed, Prefix{c.HotPrefix, now, now, c.Expires})
		}
	}
	if len(agreed) != MaxPrefixes {
		t.Errorf("%d prefixes are agreed on, want %d", len(agreed), MaxPrefixes)
	}
	for _, p := range agreed {
		if p.Anchor <= 200-MaxPrefixes || p.Anchor == 999 {
			t.Errorf("prefix %d is agreed on", p.Anchor)
		}
	}
}

// While all sets are taken, further prefixes wait, and one that ends makes room.
func TestFullTable(t *testing.T) {
	var z Sizer
	var agreed []Prefix
	works := func(from, n int) Sum {
		list := []demand.Work{{Pool: 3, Requests: 1000, Active: 1000}}
		for i := range n {
			list = append(list, demand.Work{Pool: 3, Anchor: prefixtree.Hash(from + i), Tokens: 4000, Requests: 8, Fresh: 8, Active: 8})
		}
		sum := Sum{}
		sum.Add(list)
		return sum
	}
	decide := func(i int, sum Sum) (changes []Change) {
		now := t0 + prefixtree.Time(i*Every)
		for _, c := range z.Decide(now, []policy.PoolSize{{Pool: 3, Backends: 400}}, sum, agreed) {
			at := slices.IndexFunc(agreed, func(p Prefix) bool { return p.Anchor == c.Anchor })
			switch {
			case c.Remove:
				agreed = slices.Delete(agreed, at, at+1)
			case at < 0:
				agreed = append(agreed, Prefix{c.HotPrefix, now, now, c.Expires})
			default:
				agreed[at].HotPrefix, agreed[at].Expires = c.HotPrefix, c.Expires
			}
			changes = append(changes, c)
		}
		if len(agreed) > MaxPrefixes {
			t.Fatalf("%d prefixes are agreed on", len(agreed))
		}
		return changes
	}
	for i := range 40 {
		decide(i, works(1, MaxPrefixes+1))
	}
	if len(agreed) != MaxPrefixes || slices.ContainsFunc(agreed, func(p Prefix) bool { return p.Anchor == MaxPrefixes+1 }) {
		t.Fatalf("%d prefixes are agreed on: %+v", len(agreed), agreed)
	}
	for i := range lifetime/Every + 2 {
		decide(40+i, works(2, MaxPrefixes)) // the first has no more requests
	}
	if len(agreed) != MaxPrefixes || !slices.ContainsFunc(agreed, func(p Prefix) bool { return p.Anchor == MaxPrefixes+1 }) {
		t.Errorf("a set ended, and %d prefixes are agreed on: %+v", len(agreed), agreed)
	}
}

// One node's report is bounded by its total, and the median length counts.
func TestOneNodesWord(t *testing.T) {
	sum := Sum{}
	for i := range 5 {
		sum.Add([]demand.Work{{Requests: 4, Prefill: 2, Active: 8}, {Anchor: 5, Tokens: 4000 + float64(i), Requests: 1, Fresh: 1, Prefill: 0.5, Active: 2}})
	}
	sum.Add([]demand.Work{
		{Anchor: 5, Tokens: 1e8, Requests: 1e6, Fresh: 1e6, Prefill: 1e6, Active: 1}, {Anchor: 6, Requests: 1e6, Active: 1e6}, {Pool: 9, Anchor: 5, Requests: 1e6},
		{Requests: 4, Prefill: 2, Active: 8},
	})
	sum.Add([]demand.Work{{Anchor: 5, Tokens: 1}})
	w, all := sum[Key{0, 5}].Work, sum[Key{0, 0}].Work
	if want := (demand.Work{Anchor: 5, Tokens: 4002, Requests: 9, Fresh: 9, Prefill: 4.5, Active: 11}); w != want {
		t.Errorf("%+v, want %+v", w, want)
	}
	if all.Requests != 24 || sum[Key{0, 6}].Requests != 0 || sum[Key{0, 6}].Active != 7 || sum[Key{9, 5}].Requests != 0 {
		t.Errorf("%+v, %+v, %+v", all, sum[Key{0, 6}], sum[Key{9, 5}])
	}
}

func TestFixed(t *testing.T) {
	f := newFleet(t)
	f.sizer.Fixed = 11
	for i := range 60 {
		f.step(20+float64(i), 160)
	}
	if f.replicas() != 11 || len(f.changes) != 1 {
		t.Errorf("%d replicas, %d changes", f.replicas(), len(f.changes))
	}
}

func ExampleSize() {
	hot := demand.Work{Tokens: 8192, Prefill: 1.5, Active: 40}
	all := demand.Work{Prefill: 8, Active: 400}
	n := Size(hot, all, 16)
	fmt.Println(n.Replicas, "backends:", n.Why())
	// Output: 4 backends: 10 % of the requests; keeps 1.50 backends busy, all else 0.41 of each
}
