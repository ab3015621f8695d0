package raftstore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 draws one")

// seeded logs its seed.
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

// Nodes started in any order and with different views form exactly one group.
func TestOneGroupWhateverTheOrder(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	r := seeded(t)
	var took []time.Duration
	orders, blinded, lates := make(map[string]int), 0, make(map[int]int)
	for round := range rounds {
		// Every tenth round has more candidates than needed.
		size := 3
		if round%10 == 9 {
			size = 5
		}
		order := r.Perm(size)
		var waits []time.Duration
		for range order {
			waits = append(waits, time.Duration(r.IntN(30))*time.Millisecond)
		}
		late, hidden := r.IntN(size), r.IntN(size)
		waits[late] += time.Duration(r.IntN(200)) * time.Millisecond
		// In a third of the rounds, one node misses another for a while.
		blind := r.IntN(3) == 0
		if blind {
			blinded++
		}
		orders[fmt.Sprint(order)]++
		lates[late]++
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, size, func(c *Config) {
				c.Expect = 3
				c.Timers.Heartbeat, c.Timers.Lease, c.Timers.Poll = 250*time.Millisecond, 250*time.Millisecond, 25*time.Millisecond
			})
			if blind {
				f.isolate(f.nodes[hidden])
			}
			began := time.Now()
			if err := oneGroup(f, order, waits, blind); err != nil {
				t.Errorf("round %d, order %v, waits %v: %v", round, order, waits, err)
				return
			}
			took = append(took, time.Since(began))
		})
	}
	if len(took) != rounds {
		t.Fatalf("%d of %d orders formed one group", len(took), rounds)
	}
	slices.Sort(took)
	t.Logf("%d orders formed one group each: %d different ones, the late node by place in the order %v, %d with a node that is not seen at first; until all agree p50 %v, worst %v",
		len(took), len(orders), lates, blinded, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

func oneGroup(f *fleet, order []int, waits []time.Duration, blind bool) error {
	for i, n := range order {
		time.Sleep(waits[i])
		s, err := f.nodes[n].open()
		if err != nil {
			return err
		}
		id := s.ID()
		f.nodes[n].id.Store(&id)
		if err := s.Start(f.t.Context()); err != nil {
			return err
		}
		f.nodes[n].store.Store(s)
	}
	if blind {
		time.Sleep(50 * time.Millisecond)
		f.heal()
	}
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
			if len(st.Servers) != len(order) {
				why = fmt.Errorf("%s knows %d servers and is %s, waiting %q", st.ID, len(st.Servers), st.Role, st.Waiting)
			}
		}
		// Two groups never merge.
		if delete(groups, ""); len(groups) > 1 {
			return fmt.Errorf("groups %v", groups)
		}
		if why == nil && leaders == 1 && len(groups) == 1 {
			return nil
		}
	}
	return fmt.Errorf("no group in %v: %w", patience, why)
}
