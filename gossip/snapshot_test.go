package gossip

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/bubble"
)

// fill gives nodes facts that no journal has.
func fill(nodes []*testNode, count int) {
	for _, n := range nodes {
		n.know.mu.Lock()
		for i := range count {
			n.know.mergeLocked(uint64(1_000_000+i), uint64(i))
		}
		n.know.mu.Unlock()
	}
}

func TestJoinerTakesASnapshotBeforeItIsWarm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(3, nil)
		fill(nodes, 50_000)
		joiner := net.start("n3", nil)
		nodes = append(nodes, joiner)
		defer stopAll(t, nodes)
		if joiner.warming.warm() || joiner.WarmFraction() != 0 {
			t.Fatal("warm before anything came")
		}
		last := 0.0
		until(t, 5*time.Second, "warm", func() bool {
			f := joiner.WarmFraction()
			if f < last {
				t.Fatalf("warm fraction goes back from %v to %v", last, f)
			}
			last = f
			return joiner.warming.warm()
		})
		if !allKnow(nodes) {
			t.Error("warm without knowing what the others know")
		}
		if s := joiner.Stats(); joiner.WarmFraction() != 1 || s.SnapshotsTaken != 1 || s.SnapshotRecords != 50_000 {
			t.Errorf("fraction %v, %d snapshots, %d records", joiner.WarmFraction(), s.SnapshotsTaken, s.SnapshotRecords)
		}
		net.connected(nodes)
		nodes[0].know.learn(1, 1)
		until(t, time.Second, "it takes part", func() bool { return joiner.know.knows(1) })
	})
}

func TestNobodyToLearnFromIsWarmAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		began := time.Now()
		alone := net.start("n0", nil)
		until(t, time.Second, "a node that is alone", alone.warming.warm)
		alone.stop(t)
		nodes := net.startAll(8, nil)
		defer stopAll(t, nodes)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("a cold fleet was warm after %v", took)
		}
		for _, n := range nodes {
			if n.WarmFraction() != 1 {
				t.Errorf("%s: fraction %v", n.name, n.WarmFraction())
			}
		}
	})
}

func inOrder(nodes []*testNode, joiner string) []*testNode {
	f := &Exchange{self: processID{joiner, 1}}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *testNode) int {
		if f.attraction(a.name) < f.attraction(b.name) {
			return -1
		}
		return 1
	})
	return nodes
}

func TestSecondSourceWhenTheFirstStalls(t *testing.T) {
	for _, how := range []string{"hangs", "dies"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				nodes := net.startAll(3, nil)
				fill(nodes, 20_000)
				first := inOrder(nodes, "joiner")[0]
				release := make(chan struct{})
				first.know.pageHook = func(page int) bool {
					if page < 2 {
						return true
					}
					if how == "dies" {
						net.kill(first.name)
					}
					<-release
					return false
				}
				joiner := net.start("joiner", nil)
				took := until(t, 9*time.Second, "warm from the second source", joiner.warming.warm)
				close(release)
				if how == "hangs" && took < stallTimeout {
					t.Errorf("warm after %v: the first source did not hang", took)
				}
				if took > stallTimeout+2*time.Second {
					t.Errorf("warm only after %v", took)
				}
				if n, _ := joiner.know.digest(); n != 20_000 || joiner.WarmFraction() != 1 {
					t.Errorf("%d facts, fraction %v", n, joiner.WarmFraction())
				}
				stopAll(t, append(nodes, joiner))
			})
		})
	}
}

func slowPages(nodes []*testNode, from int) (release chan struct{}) {
	release = make(chan struct{})
	for _, n := range nodes {
		n.know.pageHook = func(page int) bool {
			if page >= from {
				select {
				case <-time.After(time.Second):
				case <-release:
				}
			}
			return true
		}
	}
	return release
}

func TestReadyAtTheDeadlineWithoutKnowledge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		fill(nodes, 20_000)
		release := slowPages(nodes, 0)
		const deadline = 4 * time.Second
		joiner := net.start("joiner", func(c *Config) { c.SnapshotDeadline = deadline })
		took := until(t, 2*deadline, "ready", joiner.warming.warm)
		if took < deadline || took > deadline+100*time.Millisecond {
			t.Errorf("ready after %v, deadline %v", took, deadline)
		}
		if f := joiner.WarmFraction(); f <= 0 || f >= 1 {
			t.Errorf("fraction %v at the deadline", f)
		}
		close(release)
		until(t, 10*time.Second, "the rest comes all the same", func() bool { return joiner.WarmFraction() == 1 })
		if n, _ := joiner.know.digest(); n != 20_000 {
			t.Errorf("%d facts", n)
		}
		stopAll(t, append(nodes, joiner))
	})
}

func TestPartOfASnapshotIsNotServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		fill(nodes, 20_000)
		release := slowPages(nodes, 1)
		early := func(c *Config) { c.SnapshotDeadline = 2 * time.Second }
		part := net.start("part", early)
		until(t, 5*time.Second, "ready in part", part.warming.warm)
		if n, _ := part.know.digest(); n == 0 || n == 20_000 {
			t.Fatalf("%d facts at the deadline", n)
		}
		all := append(nodes, part)
		name := "joiner"
		for i := 0; inOrder(all, name)[0] != part; i++ {
			name = fmt.Sprintf("joiner%d", i)
		}
		joiner := net.start(name, nil)
		until(t, 5*time.Second, "refused by the part", func() bool { return part.Stats().SnapshotsRefused > 0 })
		close(release)
		until(t, 20*time.Second, "whole", func() bool { return joiner.WarmFraction() == 1 })
		if n, _ := joiner.know.digest(); n != 20_000 {
			t.Errorf("%d facts taken for the whole", n)
		}
		stopAll(t, append(all, joiner))
	})
}

func TestManyJoinersAreServedFewAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.latency = 2 * time.Millisecond
		nodes := net.startAll(1, nil)
		fill(nodes, 20_000)
		var now, most atomic.Int64
		source := nodes[0].know
		source.pageHook = func(page int) bool {
			if page == 0 {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
			}
			time.Sleep(20 * time.Millisecond)
			if page == 20_000*recordSize/pageBytes {
				now.Add(-1)
			}
			return true
		}
		var joiners []*testNode
		for i := range 8 {
			joiners = append(joiners, net.start(fmt.Sprintf("j%d", i), nil))
		}
		for _, j := range joiners {
			until(t, 9*time.Second, j.name+" is warm", j.warming.warm)
			if n, _ := j.know.digest(); n < 20_000 {
				t.Errorf("%s: warm with %d facts", j.name, n)
			}
		}
		if n := most.Load(); n > maxSnapshots || n < 2 {
			t.Errorf("%d snapshots at a time, at most %d", n, maxSnapshots)
		}
		stopAll(t, append(nodes, joiners...))
	})
}

func TestBudgetPacesSnapshotsAndSparesLoad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		const rate = 64 << 10
		nodes := net.startAll(1, func(c *Config) { c.Budget = rate })
		fill(nodes, 40_000) // 640 kB: ten seconds
		joiner := net.start("joiner", func(c *Config) { c.SnapshotDeadline = time.Minute })
		nodes = append(nodes, joiner)
		defer stopAll(t, nodes)
		net.connected(nodes)
		before, began := nodes[0].Stats().SentBytes, time.Now()
		for i := 0; !joiner.warming.warm(); i++ {
			nodes[0].know.setLoad(1, uint32(i+1), 1)
			until(t, defaultFlush+5*time.Millisecond, "load beside a snapshot", func() bool {
				return joiner.know.peerLoad("n0")[1].PrefillTokens == uint32(i+1)
			})
			if i > 2000 {
				t.Fatal("never warm")
			}
		}
		sent := float64(nodes[0].Stats().SentBytes - before)
		if allowed := rate * (time.Since(began).Seconds() + 1); sent > allowed {
			t.Errorf("%.0f bytes sent, budget %.0f", sent, allowed)
		}
		if n, _ := joiner.know.digest(); n != 40_000 {
			t.Errorf("%d facts", n)
		}
	})
}

func TestBudgetHoldsNewsBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		const rate = 32 << 10
		nodes := net.startAll(3, func(c *Config) { c.Budget = rate })
		defer stopAll(t, nodes)
		before, began := nodes[0].Stats().SentBytes, time.Now()
		for i := range 20_000 { // 320 kB to each of two
			nodes[0].know.learn(uint64(i), 1)
		}
		time.Sleep(5 * time.Second)
		s := nodes[0].Stats()
		if sent, allowed := float64(s.SentBytes-before), rate*(time.Since(began).Seconds()+1); sent > 1.1*allowed || sent < 0.5*allowed {
			t.Errorf("%.0f bytes sent, budget %.0f", sent, allowed)
		}
		if s.DroppedBudget == 0 {
			t.Error("holding news back was not counted")
		}
		nodes[0].know.mu.Lock()
		left := len(nodes[0].know.outbox)
		nodes[0].know.mu.Unlock()
		if left == 0 {
			t.Error("nothing stayed behind")
		}
		until(t, time.Minute, "all comes in the end", func() bool { return allKnow(nodes) })
	})
}

func TestNewsBeyondTheBudgetLeavesASnapshotItsShare(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		const rate = 64 << 10
		nodes := net.startAll(1, func(c *Config) { c.Budget = rate })
		fill(nodes, 10_000) // 160 kB: ten seconds of a quarter of the budget
		source := nodes[0]
		joiner := net.start("joiner", func(c *Config) { c.SnapshotDeadline = time.Hour })
		nodes = append(nodes, joiner)
		defer stopAll(t, nodes)
		before, began := source.Stats().SentBytes, time.Now()
		for i := uint64(0); joiner.WarmFraction() < 1; i++ {
			for k := range uint64(1000) { // 320 kB/s
				source.know.learn(i*1000+k, i)
			}
			time.Sleep(defaultFlush)
			if time.Since(began) > time.Minute {
				t.Fatalf("%.2f of a snapshot after a minute", joiner.WarmFraction())
			}
		}
		s := source.Stats()
		if sent, allowed := float64(s.SentBytes-before), rate*(time.Since(began).Seconds()+1); sent > 1.1*allowed {
			t.Errorf("%.0f bytes sent, budget %.0f", sent, allowed)
		}
		if s.DroppedBudget == 0 || s.SentByKind["batch"] < s.SentByKind["page"] {
			t.Errorf("%d flushes cut short, %d bytes of news beside %d of pages: nothing is tested", s.DroppedBudget, s.SentByKind["batch"], s.SentByKind["page"])
		}
	})
}

func TestManySubscribersOfASmallBudgetAreSentNews(t *testing.T) {
	know := newModel("x")
	f, err := prepare(Config{Knowledge: know, Budget: minBudget, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 * minBudget / minDrain {
		f.subscribers[fmt.Sprint(i)] = &subscriber{wake: make(chan struct{}, 1)}
	}
	know.learn(1, 1)
	f.flushNews(&publisher{}, time.Now())
	if s := f.Stats(); s.PublishedBatches != 1 || s.DroppedBudget != 0 {
		t.Errorf("%d batches, %d flushes cut short of a full bucket", s.PublishedBatches, s.DroppedBudget)
	}
}

// The pages may lack that batch.
func TestPositionsLeaveOutABatchThatIsBeingApplied(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		release, applying := make(chan struct{}), false
		reader := nodes[1].know
		reader.mu.Lock()
		reader.refuse = func([]byte) bool {
			applying = true
			reader.mu.Unlock()
			<-release
			reader.mu.Lock()
			return false
		}
		reader.mu.Unlock()
		position := func() uint64 {
			for _, p := range nodes[1].positions() {
				if string(p.Name) == "n0" {
					return p.Next
				}
			}
			return 0
		}
		nodes[0].know.learn(1, 1)
		until(t, time.Second, "the batch is being applied", func() bool {
			reader.mu.Lock()
			defer reader.mu.Unlock()
			return applying
		})
		if got := position(); got != 1 {
			t.Errorf("position %d while batch 1 is being applied", got)
		}
		close(release)
		until(t, time.Second, "the batch is applied", func() bool { return position() == 2 })
		for _, p := range nodes[0].positions() {
			if string(p.Name) == "n0" && p.Next != 2 {
				t.Errorf("own position %d", p.Next)
			}
		}
	})
}

func TestJoinerTakesWhatItsSourceHasNotHeard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(2, nil)
		net.setCut(func(a, b string) bool { return a+b == "n0n1" || a+b == "n1n0" })
		for i, n := range nodes {
			n.know.learn(uint64(i), 1)
		}
		time.Sleep(4 * replaySpan)
		name := "joiner"
		for inOrder(nodes, name)[0] != nodes[0] {
			name += "x"
		}
		joiner := net.start(name, nil)
		nodes = append(nodes, joiner)
		defer stopAll(t, nodes)
		until(t, 5*time.Second, "what either node knows", func() bool {
			return joiner.know.knows(0) && joiner.know.knows(1)
		})
		if s := joiner.Stats(); s.SnapshotsTaken != 2 {
			t.Errorf("%d snapshots", s.SnapshotsTaken)
		}
	})
}
