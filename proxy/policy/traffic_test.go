package policy

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

func TestTrafficOfAFleet(t *testing.T) {
	const nodes = 10
	routers := among(t, nodes, 0, fleetOf(4))
	for i, r := range routers {
		for j := range 20 {
			blocks := 20
			if i == 3 {
				blocks = 200
			}
			serve(t, r, ask(prompt(uint64(100*i+j), 0, blocks, blocks)), t0+prefixtree.Time(1000*j))
		}
	}
	now := t0 + 20_000
	traffic := func(r *Router) demand.Rates { return r.table.Load().all.traffic.Rates(1, nodes, now) }
	alone := traffic(routers[0])
	if math.Abs(alone.Others-9*alone.Own) > 1e-9 {
		t.Fatalf("alone with 20 requests: %+v", alone)
	}
	others := make([]demand.Report, nodes)
	for i, r := range routers {
		own := r.OwnTraffic(4, now)
		blocks := 20.
		if i == 3 {
			blocks = 200
		}
		if len(own) != 1 || math.Abs(own[0].Rate-20/26.) > 0.05 || math.Abs(own[0].Whole/own[0].Rate-blocks*128/10_000) > 1e-9 {
			t.Fatalf("node %d reports %+v", i, own)
		}
		for j := range others {
			if o := &others[j]; j != i {
				*o = demand.Report{Pool: own[0].Pool, Rate: o.Rate + own[0].Rate, Prefill: o.Prefill + own[0].Prefill, Whole: o.Whole + own[0].Whole}
			}
		}
	}
	for i, r := range routers {
		r.SetPeerTraffic(map[uint64]demand.Report{poolAll: others[i]})
	}
	first := traffic(routers[0])
	if want := (9*20*128 + 200*128.) / 10 / 10_000; math.Abs(first.Mean-want) > 0.01*want {
		t.Errorf("mean prompt of %v s, want %v", first.Mean, want)
	}
	for i, r := range routers {
		o := traffic(r)
		if math.Abs(o.Mean-first.Mean) > 1e-9 || math.Abs(o.Prefill-first.Prefill) > 1e-9 || math.Abs(o.Others-first.Others) > 1e-9 {
			t.Errorf("node %d: %+v, node 0: %+v", i, o, first)
		}
		if i != 3 && math.Abs(o.Others-9*(o.Own-1/60.)) > 0.2*o.Others {
			t.Errorf("node %d: %v requests/s at the others, %v here", i, o.Others, o.Own)
		}
	}
	routers[0].SetPeerTraffic(nil)
	if o := traffic(routers[0]); o != alone {
		t.Errorf("alone again: %+v, at first %+v", o, alone)
	}
	for now = t0; now < t0+prefixtree.Time(24*time.Hour/time.Millisecond); now += 600_000 { // until the sums are 0
		if o := traffic(routers[0]); !(o.Mean > 0 && o.Mean <= 1 && o.Uncached > 0 && o.Uncached <= 1) {
			t.Fatalf("idle for %d s: %+v", (now-t0)/1000, o)
		}
	}
}

func TestPaceReachesNewModels(t *testing.T) {
	two := fleetOf(2)
	two[0].Models, two[1].Models = []string{"a"}, []string{"a"}
	r, _ := newRouter(t, Config{Nodes: 2}, two)
	key := r.table.Load().byModel["a"].key
	two[0].Models, two[1].Models = []string{"b"}, []string{"b"}
	setView(t, r, two)
	r.SetPeerTraffic(map[uint64]demand.Report{key: {Pool: key, Rate: 5, Whole: 35}})
	two[0].Models = []string{"a", "b"}
	setView(t, r, two)
	if o := r.table.Load().byModel["a"].traffic.Rates(1, 2, t0); o.Others != 5 || o.Mean != 7 {
		t.Errorf("%+v", o)
	}
	if o := r.table.Load().byModel["b"].traffic.Rates(1, 2, t0); o.Mean != 1 {
		t.Errorf("the other model: %+v", o)
	}
}

// New pools get the latest traffic, even if view and traffic change at once.
func TestTrafficAndViewsAtOnce(t *testing.T) {
	sum := map[uint64]demand.Report{}
	many := fleetOf(2)
	for i := range 60 {
		model := fmt.Sprint("m", i)
		many[0].Models = append(many[0].Models, model)
		key := xxh3.HashString(model)
		sum[key] = demand.Report{Pool: key, Rate: 5, Whole: 35}
	}
	v, err := NewView(many, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := newRouter(t, Config{Nodes: 2}, fleetOf(2))
	without := r.View()
	for round := range 300 {
		r.SetView(without)
		r.SetPeerTraffic(nil)
		var wg sync.WaitGroup
		wg.Go(func() { r.SetView(v) })
		for range round {
			runtime.Gosched()
		}
		r.SetPeerTraffic(sum)
		wg.Wait()
		for model, p := range r.table.Load().byModel {
			if o := p.traffic.Rates(1, 2, t0); o.Others != 5 {
				t.Fatalf("round %d, pool of %s: %+v", round, model, o)
			}
		}
	}
}

func BenchmarkPickAmongNodes(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			r, _ := newRouter(b, Config{Nodes: 16, Staleness: 200 * time.Millisecond}, fleetOf(n))
			r.SetPeerLoad("others", []books.PeerLoad{{Backend: 0, PrefillTokens: 5000, Active: 2}}, t0)
			q := ask(prompt(1, 1, 0, 256))
			for i := range 64 {
				serve(b, r, ask(prompt(1, uint64(i), 0, 256)), t0)
			}
			a := new(Attempt)
			b.ReportAllocs()
			for i := range b.N {
				if err := r.Pick(q, t0+prefixtree.Time(i/1000), a); err != nil {
					b.Fatal(err)
				}
				a.End(unknown(), t0+prefixtree.Time(i/1000))
			}
		})
	}
}

// A model's pool that comes with a view has what the other nodes have counted before.
func TestNewPoolHasThePeersCounts(t *testing.T) {
	const anchor = 77
	r, _ := newRouter(t, Config{Nodes: 2}, fleetOf(2))
	named := fleetOf(2)
	for i := range named {
		named[i].Models = []string{"m"}
	}
	ofModel := func(do func(p *pool)) {
		for _, p := range r.table.Load().pools {
			if p.model == "m" {
				do(p)
			}
		}
	}
	setView(t, r, named)
	var key uint64
	ofModel(func(p *pool) { key = p.key })
	setView(t, r, fleetOf(2))
	r.SetPeerTraffic(map[uint64]demand.Report{key: {Pool: key, Prefixes: []demand.Count{{Requests: 100, Left: 1}, {Anchor: anchor, Requests: 100, Left: 9}}}})
	setView(t, r, named)
	found := false
	ofModel(func(p *pool) {
		blocks, _ := p.prefixes.Common([]prefixtree.Hash{anchor}, 1, len(p.entries))
		found = blocks == 1
	})
	if key == 0 || !found {
		t.Errorf("pool %x has no counts", key)
	}
}
