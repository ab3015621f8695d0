package gossip

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// seeded returns a source whose seed is in the test's log.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// lossy drops, doubles and delays live batches. Every third batch of each origin is sure to suffer, so that no seed makes the
// test empty.
func lossy(rnd *rand.Rand, mu *sync.Mutex, loss float64) func(string, *wire.Batch) (bool, int, time.Duration) {
	return func(_ string, b *wire.Batch) (drop bool, copies int, delay time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if b.Sequence%6 == 0 || rnd.Float64() < loss {
			return true, 0, 0
		}
		if rnd.IntN(4) == 0 || b.Sequence%6 == 3 {
			delay = time.Duration(1+rnd.IntN(400)) * time.Millisecond
		}
		return false, 1 + rnd.IntN(3), delay
	}
}

func TestLossDuplicationAndReorderingConverge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := seeded(t)
		var mu sync.Mutex
		net := newMemnet(t)
		nodes := net.startAll(8, func(c *Config) { c.Faults = lossy(rnd, &mu, 0.2) })
		defer stopAll(t, nodes)
		want := map[uint64]uint64{}
		for step := range 600 { // 30 s
			origin := nodes[step%len(nodes)]
			for range 3 {
				mu.Lock()
				key, at := uint64(rnd.IntN(400)), uint64(step)
				mu.Unlock()
				origin.know.learn(key, at)
				want[key] = max(want[key], at)
			}
			time.Sleep(50 * time.Millisecond)
		}
		until(t, 5*time.Second, "all know the same", func() bool { return allKnow(nodes) })
		got := nodes[0].know.copyFacts()
		if len(got) != len(want) {
			t.Fatalf("%d facts, want %d", len(got), len(want))
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("fact %d is of %d, want %d", k, got[k], v)
			}
		}
		until(t, 5*time.Second, "all journals hold the same", func() bool {
			for _, n := range nodes {
				for _, o := range nodes {
					_, head, _ := o.journal.position(o.self)
					floor, next, _ := n.journal.position(o.self)
					if next != head || len(n.journal.gaps(o.self, max(floor, 1), head-max(floor, 1), 1)) > 0 {
						return false
					}
				}
			}
			return true
		})
		time.Sleep(12 * time.Second) // the last buckets are sealed
		if !digestsAgree(nodes) {
			t.Error("digests differ although journals are equal")
		}
		for _, n := range nodes {
			s := n.Stats()
			if twice := n.know.appliedTwice(); twice != "" {
				t.Errorf("%s applied %s", n.name, twice)
			}
			if s.RepairedBatches == 0 || s.Duplicates == 0 || s.LostBatches != 0 || s.Violations != 0 {
				t.Errorf("%s: repaired %d, duplicates %d, lost %d, violations %d", n.name, s.RepairedBatches, s.Duplicates, s.LostBatches, s.Violations)
			}
		}
	})
}

func TestLossOfTheLastBatchIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		drop := true
		nodes := net.startAll(2, func(c *Config) {
			c.Faults = func(string, *wire.Batch) (bool, int, time.Duration) { return drop, 1, 0 }
		})
		defer stopAll(t, nodes)
		nodes[0].know.learn(5, 1)
		took := until(t, 2*time.Second, "a batch that nothing follows", func() bool { return nodes[1].know.knows(5) })
		if took > pingInterval+repairInterval*2+defaultFlush {
			t.Errorf("took %v", took)
		}
	})
}

func TestPartitionHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(8, nil)
		defer stopAll(t, nodes)
		side := func(name string) bool { return name < "n4" }
		traffic := func(steps int, base uint64) {
			for step := range steps {
				for i, n := range nodes {
					n.know.learn(base+uint64(step*8+i), uint64(step))
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
		traffic(200, 0)
		net.partition(side)
		traffic(1200, 1_000_000)
		if n, _ := nodes[0].know.fleet(); n != 4 {
			t.Fatalf("%d nodes are left on one side, want 4", n)
		}
		if nodes[0].know.knows(1_000_000+7) || !nodes[0].know.knows(1_000_000+3) {
			t.Fatal("the partition does not separate, or one side does not work")
		}
		net.heal()
		began := time.Now()
		traffic(20, 2_000_000) // membership takes a second of the five to notice
		until(t, 4*time.Second, "all know the same", func() bool { return allKnow(nodes) })
		until(t, 4*time.Second, "digests agree", func() bool { return digestsAgree(nodes) })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("digests agree %v after healing", took)
		}
		for _, n := range nodes {
			s := n.Stats()
			if twice := n.know.appliedTwice(); twice != "" {
				t.Errorf("%s applied %s", n.name, twice)
			}
			if s.LostBatches > 0 || s.Violations > 0 {
				t.Errorf("%s: lost %d, violations %d", n.name, s.LostBatches, s.Violations)
			}
		}
	})
}

func TestBatchesOfADeadOriginSpreadFromOneSurvivor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(5, nil)
		time.Sleep(12 * time.Second) // into buckets that all have from their beginning
		// From now on only n3 hears n0, and nobody can ask n0 what is missing.
		net.setCut(func(a, b string) bool { return a == "n0" && b != "n3" || b == "n0" && a != "n3" })
		for i := range 3 {
			nodes[0].know.learn(uint64(100+i), 1)
			time.Sleep(defaultFlush)
		}
		until(t, time.Second, "one survivor has it", func() bool { return nodes[3].know.knows(102) })
		nodes[0].kill(t)
		net.setCut(nil)
		survivors := nodes[1:]
		defer stopAll(t, survivors)
		// Every node compares with one random peer in 5 to 15 s, once the bucket is sealed.
		until(t, 3*time.Minute, "all survivors have it", func() bool {
			return allKnow(survivors) && survivors[0].know.knows(102)
		})
		until(t, 30*time.Second, "digests agree", func() bool { return digestsAgree(survivors) })
		for _, n := range survivors {
			if twice := n.know.appliedTwice(); twice != "" {
				t.Errorf("%s applied %s", n.name, twice)
			}
		}
	})
}

// What processes have said that began while nobody could hear them is repaired from them: a snapshot from one of them has
// nothing of the others.
func TestProcessesThatBeganUnheardAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(4, nil)
		time.Sleep(12 * time.Second)
		net.setCut(func(a, b string) bool { return a != b })
		net.afterNotice(member.Failed)
		for i := 2; i < 4; i++ {
			nodes[i].kill(t)
			nodes[i] = net.start(nodes[i].name, nil)
			nodes[i].know.learn(uint64(100+i), 1)
		}
		defer stopAll(t, nodes)
		time.Sleep(20 * time.Second) // longer than what is told to anybody who comes
		net.heal()
		until(t, 5*time.Second, "all know what each has said", func() bool {
			return allKnow(nodes) && nodes[0].know.knows(102) && nodes[0].know.knows(103)
		})
		for _, n := range nodes {
			if s := n.Stats(); s.LostBatches > 0 || s.Violations > 0 {
				t.Errorf("%s: lost %d, violations %d", n.name, s.LostBatches, s.Violations)
			}
		}
	})
}

func TestHungPeerCostsOnlyItsOwnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour // alive to membership all the while
		net.buffer = 16 << 10
		nodes := net.startAll(4, nil)
		defer stopAll(t, nodes)
		net.partition(func(name string) bool { return name == "n3" })
		for i := range 400 {
			key := uint64(i)
			nodes[0].know.learn(key, 1)
			for j := range 20 { // fills the buffer towards n3
				nodes[0].know.learn(1_000_000+uint64(i*20+j), 1)
			}
			until(t, defaultFlush+5*time.Millisecond, "news among those that are well", func() bool {
				return nodes[1].know.knows(key) && nodes[2].know.knows(key)
			})
		}
		net.setCut(nil)
		until(t, 10*time.Second, "the hung one catches up", func() bool { return allKnow(nodes) })
	})
}

func TestSubscriberFarBehindIsSentTheLatestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		net.partition(func(name string) bool { return name == "n1" })
		for i := range maxBehind + 500 {
			nodes[0].know.learn(uint64(i), 1)
			time.Sleep(defaultFlush)
		}
		net.setCut(nil)
		until(t, 10*time.Second, "all is there", func() bool { return allKnow(nodes) })
		s := nodes[1].Stats()
		if s.RepairedBatches == 0 || s.LostBatches > 0 {
			t.Errorf("repaired %d, lost %d", s.RepairedBatches, s.LostBatches)
		}
	})
}

func TestPartitionThatOutlastsTheJournalsIsMadeGoodBySnapshots(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprintf("quiet=%v", quiet), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				nodes := net.startAll(4, nil)
				defer stopAll(t, nodes)
				for i, n := range nodes {
					n.know.learn(uint64(i), 1)
				}
				time.Sleep(time.Second)
				net.partition(func(name string) bool { return name < "n2" })
				time.Sleep(net.notice)
				for i := range 50 {
					nodes[0].know.learn(uint64(100+i), 1)
					nodes[3].know.learn(uint64(200+i), 1)
					time.Sleep(time.Second)
				}
				for end := time.Now().Add(2 * journalAge); time.Now().Before(end); time.Sleep(time.Minute) {
					if !quiet {
						for i, n := range nodes {
							n.know.learn(uint64(1000+i), uint64(time.Now().UnixMilli()))
						}
					}
				}
				net.heal()
				until(t, 3*time.Minute, "all know the same", func() bool { return allKnow(nodes) })
				if count, _ := nodes[0].know.digest(); count < 104 {
					t.Errorf("%d facts", count)
				}
			})
		})
	}
}
