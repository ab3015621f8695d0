package gossip

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/gossip/member"
)

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestPartitionHeals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
		traffic(20, 2_000_000)
		until(t, 4*time.Second, "all know the same", func() bool { return allKnow(nodes) })
		until(t, 4*time.Second, "all have applied everything", func() bool { return positionsAgree(nodes) })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("all know the same %v after healing", took)
		}
		for _, n := range nodes {
			s := n.Stats()
			if twice := n.know.appliedTwice(); twice != "" {
				t.Errorf("%s applied %s", n.name, twice)
			}
			if s.Resumes != 4 || s.MissedBatches > 0 || s.Violations > 0 {
				t.Errorf("%s: %d resumes, missed %d, violations %d", n.name, s.Resumes, s.MissedBatches, s.Violations)
			}
		}
	})
}

func TestProcessesThatBeganDuringAPartitionAreFollowedFromTheirFirstBatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
		time.Sleep(20 * time.Second) // longer than replaySpan
		net.heal()
		until(t, 5*time.Second, "all know what each has published", func() bool {
			return allKnow(nodes) && nodes[0].know.knows(102) && nodes[0].know.knows(103)
		})
		for _, n := range nodes {
			if s := n.Stats(); s.MissedBatches > 0 || s.Violations > 0 {
				t.Errorf("%s: missed %d, violations %d", n.name, s.MissedBatches, s.Violations)
			}
		}
	})
}

func TestHungPeerCostsOnlyItsOwnStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour // alive to membership all the while
		net.buffer = 16 << 10
		nodes := net.startAll(4, nil)
		defer stopAll(t, nodes)
		net.partition(func(name string) bool { return name == "n3" })
		for i := range 400 {
			key := uint64(i)
			nodes[0].know.learn(key, 1)
			for j := range 20 {
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

func TestBrokenStreamResumes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		nodes[0].know.learn(1_000_000, 1)
		until(t, time.Second, "the first batch", func() bool { return allKnow(nodes) })
		net.partition(func(name string) bool { return name == "n1" })
		const batches = 2000
		for i := range batches {
			nodes[0].know.learn(uint64(i), 1)
			time.Sleep(defaultFlush)
		}
		before := nodes[1].Stats()
		net.setCut(nil)
		until(t, 5*time.Second, "all is there", func() bool { return allKnow(nodes) && positionsAgree(nodes) })
		s := nodes[1].Stats()
		if s.Resumes != 1 || s.MissedBatches > 0 || s.SnapshotsTaken > before.SnapshotsTaken || s.AppliedBatches < batches {
			t.Errorf("%d resumes, %d batches missed, %d snapshots, %d batches applied", s.Resumes, s.MissedBatches, s.SnapshotsTaken, s.AppliedBatches)
		}
		if twice := nodes[1].know.appliedTwice(); twice != "" {
			t.Errorf("applied %s", twice)
		}
	})
}

func TestSubscriberBehindTheJournalTakesASnapshot(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		net.buffer = 4 << 10
		nodes := net.startAll(2, func(c *Config) { c.JournalBytes = minJournal })
		defer stopAll(t, nodes)
		net.partition(func(name string) bool { return name == "n1" })
		for i := range 200 {
			for j := range 1000 { // 16 kB a flush
				nodes[0].know.learn(uint64(i*1000+j), 1)
			}
			time.Sleep(defaultFlush)
		}
		if oldest, _ := nodes[0].journal.position(); oldest == 1 {
			t.Fatal("the journal still holds everything: nothing is tested")
		}
		net.setCut(nil)
		took := until(t, 5*time.Second, "all is there", func() bool { return allKnow(nodes) && positionsAgree(nodes) })
		s := nodes[1].Stats()
		if s.MissedBatches == 0 || s.SnapshotsTaken == 0 || s.Violations > 0 {
			t.Errorf("%d batches missed, %d snapshots, %d violations", s.MissedBatches, s.SnapshotsTaken, s.Violations)
		}
		t.Logf("caught up in %v", took)
	})
}

func TestOneSnapshotReplacesMissingBatchesOfAllPeers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(8, func(c *Config) { c.JournalBytes = minJournal })
		defer stopAll(t, nodes)
		net.partition(func(name string) bool { return name < "n1" })
		for i := range 200 {
			for k, n := range nodes {
				for j := range 1000 {
					n.know.learn(uint64(k*1_000_000+j), uint64(i))
				}
			}
			time.Sleep(defaultFlush)
		}
		before := nodes[0].Stats().SnapshotsTaken
		net.heal()
		until(t, 6*time.Second, "all know the same", func() bool { return allKnow(nodes) && positionsAgree(nodes) })
		s := nodes[0].Stats()
		if taken := s.SnapshotsTaken - before; taken == 0 || taken > 2 {
			t.Errorf("%d snapshots for %d missed batches of seven peers", taken, s.MissedBatches)
		}
	})
}

func TestPartitionThatOutlastsTheJournalsIsMadeGoodBySnapshots(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprintf("quiet=%v", quiet), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
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
				until(t, 6*time.Second, "all know the same", func() bool { return allKnow(nodes) && positionsAgree(nodes) })
				if count, _ := nodes[0].know.digest(); count < 104 {
					t.Errorf("%d facts", count)
				}
			})
		})
	}
}
