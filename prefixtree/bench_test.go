package prefixtree

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// go test -run '^$' -bench . -count=5 ./prefixtree/

const promptBytes = 128 << 10 // about 32k tokens, 256 blocks

func BenchmarkHash(b *testing.B) {
	prompt := make([]byte, promptBytes)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range prompt {
		prompt[i] = byte(r.Uint32())
	}
	for _, size := range []int{128, 256, 512, 1024} {
		b.Run(fmt.Sprintf("chain/bytes=%d/block=%d", promptBytes, size), func(b *testing.B) {
			h, err := NewHasher([]byte("secret"), size)
			if err != nil {
				b.Fatal(err)
			}
			var c Chain
			b.SetBytes(promptBytes)
			b.ReportAllocs()
			for b.Loop() {
				c.Reset(h)
				c.Write(prompt)
			}
			if len(c.Hashes()) != promptBytes/size {
				b.Fatal("wrong number of blocks")
			}
		})
	}
	b.Run(fmt.Sprintf("xxh3/bytes=%d", promptBytes), func(b *testing.B) {
		b.SetBytes(promptBytes)
		for b.Loop() {
			xxh3.Hash(prompt)
		}
	})
	zeros := make([]byte, promptBytes)
	b.Run(fmt.Sprintf("indexbyte/bytes=%d", promptBytes), func(b *testing.B) {
		b.SetBytes(promptBytes)
		for b.Loop() {
			bytes.IndexByte(zeros, 1)
		}
	})
}

type resident struct {
	tree     *Tree
	chains   [][]Hash
	backends int
	all      bool // every backend holds every chain, else one
}

func (r resident) holder(chain int, rnd *rand.Rand) Backend {
	if r.all {
		return Backend(rnd.IntN(r.backends))
	}
	return Backend(chain % r.backends)
}

func fill(tb testing.TB, facts, backends, depth int, all bool) resident {
	r := resident{tree: newTree(tb, Config{Budget: 1 << 30}), backends: backends, all: all}
	perChain := depth
	if all {
		perChain *= backends
	}
	for i := range facts / perChain {
		chain := chainOf(tb, uint64(i+1), depth)
		r.chains = append(r.chains, chain)
		if !all {
			r.tree.Record(Backend(i%backends), chain, start, nil)
			continue
		}
		for k := range backends {
			r.tree.Record(Backend(k), chain, start, nil)
		}
	}
	return r
}

type latencies struct {
	counts [100_000]int
	total  int
}

func (l *latencies) add(d time.Duration) {
	l.counts[min(int(d/10), len(l.counts)-1)]++
	l.total++
}

func (l *latencies) quantile(q float64) float64 {
	rank, sum := int(q*float64(l.total)), 0
	for i, n := range l.counts {
		if sum += n; sum > rank {
			return float64(i*10 + 5)
		}
	}
	return float64(len(l.counts) * 10)
}

// report adds quantiles in ns, less the cost of reading the clock.
func (l *latencies) report(b *testing.B) {
	timer := new(latencies)
	for range 10_000 {
		t0 := time.Now()
		timer.add(time.Since(t0))
	}
	cost := timer.quantile(.5)
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50-ns", .5}, {"p99-ns", .99}, {"p999-ns", .999}} {
		b.ReportMetric(max(0, l.quantile(q.q)-cost), q.name)
	}
}

func benchMatch(b *testing.B, r resident, query func(chain []Hash) []Hash, want int) {
	var m Matches
	l := new(latencies)
	rnd := rand.New(rand.NewPCG(3, 4))
	r.tree.Match(&m, query(r.chains[0]), start+1)
	if len(m.Holders()) != want {
		b.Fatalf("%d holders, want %d", len(m.Holders()), want)
	}
	b.ReportAllocs()
	for b.Loop() {
		chain := query(r.chains[rnd.IntN(len(r.chains))])
		t0 := time.Now()
		r.tree.Match(&m, chain, start+1)
		l.add(time.Since(t0))
	}
	l.report(b)
}

func whole(chain []Hash) []Hash { return chain }

func BenchmarkMatch(b *testing.B) {
	for _, all := range []bool{false, true} {
		held, want := "one", 1
		if all {
			held, want = "all", 64
		}
		name := fmt.Sprintf("facts=1M/backends=64/blocks=256/held=%s", held)
		r := fill(b, 1_000_000, 64, 256, all)
		b.Run("impl=tree/"+name, func(b *testing.B) { benchMatch(b, r, whole, want) })
		b.Run("impl=tree/writer=1M-s/"+name, func(b *testing.B) {
			stop := writeInBackground(r)
			defer stop(b)
			benchMatch(b, r, whole, want)
		})
		other := chainOf(b, 1<<30, 256)
		scratch := make([]Hash, 256)
		diverge := func(chain []Hash) []Hash {
			copy(scratch, chain[:203])
			copy(scratch[203:], other)
			return scratch
		}
		b.Run("impl=tree/diverge=203/"+name, func(b *testing.B) { benchMatch(b, r, diverge, want) })
		b.Run("impl=map/"+name, func(b *testing.B) { benchNaive(b, r, all) })
	}
}

func BenchmarkMatchWorst(b *testing.B) {
	for _, backends := range []int{64, 256, 2000} {
		tree := newTree(b, Config{})
		chain := chainOf(b, 1, 256)
		for k := range backends {
			tree.Record(Backend(k), chain[:1+k*255/(backends-1)], start, nil)
		}
		r := resident{tree: tree, chains: [][]Hash{chain}, backends: backends}
		b.Run(fmt.Sprintf("ends=distinct/blocks=256/backends=%d", backends), func(b *testing.B) {
			benchMatch(b, r, whole, backends)
		})
	}
	for _, backends := range []int{256, 2000} {
		r := fill(b, backends*256*4, backends, 256, true)
		b.Run(fmt.Sprintf("ends=same/blocks=256/backends=%d", backends), func(b *testing.B) {
			benchMatch(b, r, whole, backends)
		})
	}
}

// writeInBackground records 1M blocks/s, half new and half touches, in fast time so that touches
// are due.
func writeInBackground(r resident) (stop func(b *testing.B)) {
	const perSecond, speed = 1_000_000, 40
	var done atomic.Bool
	var written atomic.Int64
	var wg sync.WaitGroup
	began, from := time.Now(), max(start, Time(r.tree.clock.Load()))
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(5, 6))
		fresh := make([]Hash, len(r.chains[0]))
		for n := int64(0); !done.Load(); {
			for time.Since(began) < time.Duration(n)*time.Second/perSecond && !done.Load() {
				runtime.Gosched()
			}
			now := from + Time(n*1000*speed/perSecond)
			for i := range fresh {
				fresh[i] = Hash(rnd.Uint64() | 1)
			}
			r.tree.Record(Backend(rnd.IntN(r.backends)), fresh, now, nil)
			i := rnd.IntN(len(r.chains))
			r.tree.Record(r.holder(i, rnd), r.chains[i], now, nil)
			n += int64(2 * len(fresh))
			written.Store(n)
		}
	})
	return func(b *testing.B) {
		done.Store(true)
		wg.Wait()
		b.ReportMetric(float64(written.Load())/time.Since(began).Seconds(), "writes/s")
	}
}

type naive struct {
	mu     sync.RWMutex
	blocks map[Hash]map[Backend]Time
}

func (n *naive) record(k Backend, chain []Hash, at Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range chain {
		if n.blocks[h] == nil {
			n.blocks[h] = map[Backend]Time{}
		}
		n.blocks[h][k] = at
	}
}

func (n *naive) match(depths map[Backend]int, chain []Hash) {
	clear(depths)
	n.mu.RLock()
	defer n.mu.RUnlock()
	for i, h := range chain {
		for k := range n.blocks[h] {
			if depths[k] == i {
				depths[k] = i + 1
			}
		}
	}
}

func benchNaive(b *testing.B, r resident, all bool) {
	n := &naive{blocks: map[Hash]map[Backend]Time{}}
	for i, chain := range r.chains {
		for k := range r.backends {
			if all || k == i%r.backends {
				n.record(Backend(k), chain, start)
			}
		}
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	depths := map[Backend]int{}
	l := new(latencies)
	b.ReportAllocs()
	for b.Loop() {
		chain := r.chains[rnd.IntN(len(r.chains))]
		t0 := time.Now()
		n.match(depths, chain)
		l.add(time.Since(t0))
	}
	l.report(b)
}

func BenchmarkRecord(b *testing.B) {
	const grain = Time(defaultHorizon/time.Millisecond) / grainsPerHorizon
	for _, c := range []struct {
		name    string
		holders int
		cold    bool
	}{{"cold/held=1", 1, true}, {"hot/held=1", 1, false}, {"hot/held=64", 64, false}, {"hot/held=2000", 2000, false}} {
		for _, touch := range []struct {
			name       string
			step, stay Time // a full round of the chains takes 20 steps
		}{{"none", 0, 0}, {"once", grain / 10, 0}, {"twice", grain / 5, 2 * grain}} {
			r := fill(b, 1_000_000, 64, 256, false)
			backends, round := 64, len(r.chains)
			if !c.cold {
				r.chains, backends, round = [][]Hash{chainOf(b, 1<<31, 256)}, c.holders, c.holders
				for k := range backends {
					r.tree.Record(Backend(k), r.chains[0], start, nil)
				}
			}
			n := 0
			b.Run(fmt.Sprintf("known/%s/touch=%s/blocks=256", c.name, touch.name), func(b *testing.B) {
				var tr TouchHistory
				b.ReportAllocs()
				for b.Loop() {
					n++
					now := start + 20*touch.step*Time(n)/Time(round)
					k, chain := Backend(n%backends), r.chains[n*617%len(r.chains)]
					if c.cold {
						k = Backend(n * 617 % len(r.chains) % backends)
					}
					r.tree.Record(k, chain, now, &tr)
					r.tree.Learn(k, chain, &tr, tr.depth(), now+touch.stay)
				}
			})
		}
	}
	b.Run("new/at=budget/blocks=256", func(b *testing.B) {
		tree := newTree(b, Config{Budget: 32 << 20})
		rnd := rand.New(rand.NewPCG(9, 10))
		chain := make([]Hash, 256)
		now := start
		l := new(latencies)
		b.ReportAllocs()
		for b.Loop() {
			now++
			for i := range chain {
				chain[i] = Hash(rnd.Uint64() | 1)
			}
			t0 := time.Now()
			tree.Record(1, chain, now, nil)
			l.add(time.Since(t0))
		}
		l.report(b)
	})
}

func BenchmarkHeap(b *testing.B) {
	for _, kind := range []string{"unique", "pairs", "shared64"} {
		for _, facts := range []int{1_000_000, 1_110_000, 1_230_000, 1_370_000, 10_000_000} {
			b.Run(fmt.Sprintf("kind=%s/facts=%d", kind, facts), func(b *testing.B) {
				before := liveHeap()
				tree := newTree(b, Config{Budget: 1 << 30})
				fillKind(b, tree, kind, facts)
				heap := liveHeap() - before
				got := tree.Stats().Facts
				b.ReportMetric(float64(heap)/float64(got), "B/fact")
				b.ReportMetric(gcTime().Seconds()*1000, "gc-ms")
				b.ReportMetric(0, "ns/op")
				runtime.KeepAlive(tree)
			})
		}
	}
	b.Run("kind=map/facts=1000000", func(b *testing.B) {
		before := liveHeap()
		n := &naive{blocks: map[Hash]map[Backend]Time{}}
		rnd := rand.New(rand.NewPCG(11, 12))
		chain := make([]Hash, 100)
		for range 10_000 {
			for i := range chain {
				chain[i] = Hash(rnd.Uint64())
			}
			n.record(1, chain, start)
		}
		b.ReportMetric(float64(liveHeap()-before)/1e6, "B/fact")
		b.ReportMetric(gcTime().Seconds()*1000, "gc-ms")
		b.ReportMetric(0, "ns/op")
		runtime.KeepAlive(n)
	})
}

func fillKind(tb testing.TB, tree *Tree, kind string, facts int) {
	holders := map[string]int{"unique": 1, "pairs": 2, "shared64": 64}[kind]
	rnd := rand.New(rand.NewPCG(11, 12))
	chain := make([]Hash, 1000)
	for n := 0; n < facts; n += holders * len(chain) {
		for i := range chain {
			chain[i] = Hash(rnd.Uint64() | 1)
		}
		for k := range holders {
			tree.Record(Backend(k), chain, start, nil)
		}
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}

func gcTime() time.Duration {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	times := make([]time.Duration, 7)
	for i := range times {
		t0 := time.Now()
		runtime.GC()
		times[i] = time.Since(t0)
	}
	slices.Sort(times)
	return times[len(times)/2]
}
