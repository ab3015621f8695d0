package raftstore

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func leads(b *testing.B, nodes []*node) *node {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, n := range nodes {
			if s := n.store.Load(); s != nil && s.isLeader(s.current()) {
				return n
			}
		}
	}
	b.Fatal("no leader")
	return nil
}

func usual(c *Config) { c.Timers = Timers{} }

// BenchmarkFailover needs -benchtime 20x for quantiles.
func BenchmarkFailover(b *testing.B) {
	for _, how := range []string{"killed", "stopped"} {
		b.Run(how, func(b *testing.B) {
			f := newRealFleet(b, 3, usual).start()
			apply(b, leads(b, f.nodes).store.Load(), add("one"))
			var took []float64
			for b.Loop() {
				leader := leads(b, f.nodes)
				others := f.others(leader)
				apply(b, others[0].store.Load(), SetSwitches{})
				end := leader.halt
				if how == "killed" {
					end = leader.kill
				}
				began := time.Now()
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					end()
				}()
				leads(b, others)
				took = append(took, time.Since(began).Seconds()*1000)
				<-gone
				leader.start()
				until(b, "all to follow", func() bool {
					return !slices.ContainsFunc(f.running(), func(s *Store) bool { return s.Status().Leader == "" })
				})
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "ms/p50")
			b.ReportMetric(took[len(took)-1], "ms/max")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkApply(b *testing.B) {
	for _, callers := range []int{1, 32} {
		for _, at := range []string{"leader", "follower"} {
			b.Run(fmt.Sprintf("callers=%d/at=%s", callers, at), func(b *testing.B) {
				f := newRealFleet(b, 3, usual).start()
				leader := leads(b, f.nodes)
				s := leader.store.Load()
				if at == "follower" {
					s = f.others(leader)[0].store.Load()
				}
				apply(b, s, add("one"))
				b.SetParallelism(callers)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := s.Apply(b.Context(), NewGeneration{Name: "one"}); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	f := newRealFleet(b, 3, usual).start()
	s := leads(b, f.nodes).store.Load()
	apply(b, s, add("one"))
	b.Run("linearizable", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Read(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("state", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.State()
		}
	})
}
