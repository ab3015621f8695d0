package prefixtree

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// placements are conversations over 64 backends, and the payloads that carry them.
type placements struct {
	payloads        [][]byte
	facts, requests int
}

func tellPlacements(tb testing.TB, requests int) (p placements) {
	tree, out := newTree(tb, Config{Budget: 1 << 30}), NewOutbox(1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	hasher := newHasher(tb)
	var news []Fact
	for i := range requests {
		session, turn := r.IntN(requests/4), 1+r.IntN(4)
		keys := make([]uint64, 30+turn*18+session%7)
		for j := range keys {
			keys[j] = uint64(session)<<20 | uint64(j)
			if j < 8 {
				keys[j] = uint64(session%16)<<50 | uint64(j)
			}
		}
		now := start + Time(i*60_000/requests)
		news = tree.RecordNews(Backend(session%64), FromKeys(nil, hasher, nil, keys), now, nil, news[:0])
		out.Add(news)
		if i%(max(1, requests/1200)) == 0 {
			payload, n := out.Drain(nil, MaxPayload, oneToOne{})
			p.payloads, p.facts = append(p.payloads, payload), p.facts+n
		}
	}
	p.requests = requests
	return p
}

func (p placements) bytes() (n int) {
	for _, payload := range p.payloads {
		n += len(payload)
	}
	return n
}

// BenchmarkApplyDelta merges new and known facts into a tree with a million facts.
func BenchmarkApplyDelta(b *testing.B) {
	p := tellPlacements(b, 60_000)
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("known=%v", known), func(b *testing.B) {
			r := fill(b, 1_000_000, 64, 256, false)
			apply := func() {
				for _, payload := range p.payloads {
					if _, err := r.tree.ApplyDelta(payload, oneToOne{}, 0, start+60_000); err != nil {
						b.Fatal(err)
					}
				}
			}
			if known {
				apply()
			}
			var busy time.Duration
			b.ReportAllocs()
			for b.Loop() {
				if !known {
					b.StopTimer()
					r = fill(b, 1_000_000, 64, 256, false)
					b.StartTimer()
				}
				t0 := time.Now()
				apply()
				busy += time.Since(t0)
			}
			b.ReportMetric(float64(busy.Nanoseconds())/float64(b.N)/float64(p.facts), "ns/fact")
			b.ReportMetric(float64(p.facts)/float64(p.requests), "anchors/request")
			b.ReportMetric(float64(p.bytes())/float64(p.facts), "B/fact")
		})
	}
}

// BenchmarkPublish compares Record and Learn with and without Config.Changed.
func BenchmarkPublish(b *testing.B) {
	const grain = Time(defaultHorizon/time.Millisecond) / grainsPerHorizon
	for _, blocks := range []int{64, 256} {
		for _, fresh := range []bool{false, true} {
			for _, tell := range []bool{false, true} {
				b.Run(fmt.Sprintf("new=%v/blocks=%d/tell=%v", fresh, blocks, tell), func(b *testing.B) {
					cfg, out := Config{Budget: 32 << 20}, NewOutbox(0)
					if tell {
						cfg.Changed = out.Add
					}
					tree := newTree(b, cfg)
					chain := chainOf(b, 1, blocks)
					rnd := rand.New(rand.NewPCG(9, 10))
					now := start
					var tr TouchHistory
					payload := make([]byte, 0, 64<<10)
					b.ReportAllocs()
					for b.Loop() {
						now += grain + 1
						if fresh {
							for i := range chain {
								chain[i] = Hash(rnd.Uint64() | 1)
							}
						}
						tree.Record(1, chain, now, &tr)
						tree.Learn(1, chain, &tr, tr.depth(), now)
						if tell {
							payload, _ = out.Drain(payload[:0], 64<<10, oneToOne{})
						}
					}
				})
			}
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	source := newTree(b, Config{Budget: 1 << 30})
	hasher := newHasher(b)
	r := rand.New(rand.NewPCG(3, 4))
	for i := 0; source.Stats().Facts < 1_000_000; i++ {
		keys := make([]uint64, 30+r.IntN(80))
		for j := range keys {
			keys[j] = uint64(i)<<20 | uint64(j)
		}
		chain := FromKeys(nil, hasher, nil, keys)
		facts := source.AppendFacts(nil, Backend(i%64), chain, start+Time(r.IntN(600_000)))
		for _, f := range facts {
			source.Apply(f)
		}
	}
	now := start + 600_000
	var pages [][]byte
	b.Run("facts=1M/give", func(b *testing.B) {
		var first, busy time.Duration
		var scratch uint64
		records, size := 0, 0
		for b.Loop() {
			records, size, pages = 0, 0, pages[:0]
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			t0 := time.Now()
			source.Snapshot(now, oneToOne{}, 64<<10, func(page []byte, n int) bool {
				if records == 0 {
					first = time.Since(t0)
				}
				records, size = records+n, size+len(page)
				pages = append(pages, nil)
				return true
			})
			busy += time.Since(t0)
			runtime.ReadMemStats(&after)
			scratch = after.TotalAlloc - before.TotalAlloc
		}
		b.ReportMetric(float64(busy.Nanoseconds())/float64(b.N)/float64(records), "ns/fact")
		b.ReportMetric(float64(first.Microseconds())/1000, "first-page-ms")
		b.ReportMetric(float64(size)/float64(records), "B/fact")
		b.ReportMetric(float64(scratch)/(1<<20), "MiB-allocated")
	})
	pages = pages[:0]
	source.Snapshot(now, oneToOne{}, 64<<10, func(page []byte, _ int) bool {
		pages = append(pages, append([]byte(nil), page...))
		return true
	})
	b.Run("facts=1M/take", func(b *testing.B) {
		var busy time.Duration
		records := 0
		for b.Loop() {
			b.StopTimer()
			tree := newTree(b, Config{Budget: 1 << 30})
			records = 0
			b.StartTimer()
			t0 := time.Now()
			for _, page := range pages {
				applied, err := tree.ApplyDelta(page, oneToOne{}, 0, now)
				if err != nil {
					b.Fatal(err)
				}
				records += applied.Records
			}
			busy += time.Since(t0)
		}
		b.ReportMetric(float64(busy.Nanoseconds())/float64(b.N)/float64(records), "ns/fact")
	})
	b.Run("facts=1M/digest", func(b *testing.B) {
		for b.Loop() {
			source.FactDigest(now, start, now, oneToOne{})
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ns/fact")
	})
}
