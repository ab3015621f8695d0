package raftstore

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 draws one")

func seeded(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestSeedsMatter(t *testing.T) {
	a, b := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(2, 0))
	if a.Uint64() == b.Uint64() {
		t.Error("two seeds give the same numbers")
	}
}

// Any order of starts forms one group and keeps each acknowledged change.
func TestOneGroupWhateverTheOrder(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	r := seeded(t)
	var took []time.Duration
	what := make(map[string]int)
	for round := range rounds {
		size := 3
		if round%10 == 9 {
			size = 5
		}
		seed := r.Uint64()
		bubble.Test(t, func(t *testing.T) {
			quick := func(c *Config) {
				c.Timers.Heartbeat, c.Timers.Lease, c.Timers.Poll = 250*time.Millisecond, 250*time.Millisecond, 25*time.Millisecond
				c.Timers.Call = 2 * time.Second
			}
			f := newFleet(t, size, quick)
			f.add("joiner", func(c *Config) {
				quick(c)
				c.Founders, c.Join = nil, true
			})
			began := time.Now()
			if err := oneGroup(t, f, rand.New(rand.NewPCG(seed, 0)), what); err != nil {
				t.Errorf("round %d: %v", round, err)
				return
			}
			took = append(took, time.Since(began))
		})
	}
	if len(took) != rounds {
		t.Fatalf("%d of %d orders formed one group", len(took), rounds)
	}
	slices.Sort(took)
	t.Logf("%d orders formed one group each, with %v; until all agree p50 %v, worst %v",
		len(took), what, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

func disturb(f *fleet, r *rand.Rand, what map[string]int) {
	emptied := r.IntN(2) == 0
	for _, i := range r.Perm(len(f.nodes)) {
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		f.nodes[i].start()
	}
	for range r.IntN(4) {
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		n := f.nodes[r.IntN(len(f.nodes))]
		switch r.IntN(3) {
		case 0:
			what["restarts"]++
			n.kill()
		case 1:
			what["partitions"]++
			f.isolate(n)
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
			f.heal()
			continue
		case 2:
			if emptied {
				continue // two would be the loss of the majority
			}
			emptied = true
			what["losses of data"]++
			n.empty()
			time.Sleep(2 * askTimeout) // a disk is not replaced during a question
		}
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
		n.start()
	}
}

func oneGroup(t *testing.T, f *fleet, r *rand.Rand, what map[string]int) error {
	var writing sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	var kept []string
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("b%d", i)
			if s := f.nodes[i%len(f.nodes)].store.Load(); s != nil {
				if _, err := s.Apply(context.Background(), add(name)); err == nil {
					kept = append(kept, name)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	disturb(f, r, what)
	cancel()
	writing.Wait()
	what["acknowledged changes"] += len(kept)
	var why error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		groups, leaders := make(map[string]int), 0
		why = nil
		for _, s := range f.running() {
			st := s.Status()
			groups[st.Group]++
			if st.Role == "leader" {
				leaders++
			}
			if len(st.Servers) != len(f.nodes) {
				why = fmt.Errorf("%s knows %d servers and is %s, waiting %q, problem %q", st.ID, len(st.Servers), st.Role, st.Waiting, st.Problem)
			}
			for _, name := range kept {
				if why == nil && !has(s.State(), name) {
					why = fmt.Errorf("%s does not know %s", st.ID, name)
				}
			}
		}
		if delete(groups, ""); len(groups) > 1 {
			return fmt.Errorf("groups %v", groups)
		}
		if why == nil && leaders == 1 && len(groups) == 1 {
			return nil
		}
	}
	return fmt.Errorf("not one group in %v: %w", patience, why)
}
