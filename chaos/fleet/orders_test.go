package fleet_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

const seedEnv = "GRAPEVINE_LIVE_SEED"

func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with %s=%d", seedEnv, s)
	return s
}

func TestLiveOrders(t *testing.T) {
	full := live(t)
	s := seed(t)
	f := start(t, fleet.Config{Nodes: 3, Later: 3, Engines: 1, Engine: fastEngine(), NoBalancer: true, Seed: s, Settings: map[string]any{"log_level": "info"}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(s, 0))
	nodes := f.Nodes()
	groups := make(map[string]bool)
	var took []time.Duration
	rounds := whenFull(full, 25, 2)
	for range rounds {
		order := rng.Perm(len(nodes))
		late := rng.IntN(len(nodes))
		waits := make([]time.Duration, len(nodes))
		for i := range waits {
			waits[i] = time.Duration(rng.Int64N(int64(300 * time.Millisecond)))
		}
		waits[late] += time.Duration(rng.Int64N(int64(whenFull(full, 4*time.Second, time.Second))))
		for i, which := range order {
			if err := sleep(ctx, waits[i]); err != nil {
				t.Fatal(err)
			}
			if err := nodes[which].Start(); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		a := agree(ctx, t, f, len(nodes))
		took = append(took, time.Since(began))
		if groups[a.group] {
			t.Errorf("order %v, waits %v: group %s is one of before", order, waits, a.group)
		}
		groups[a.group] = true
		w := newWrites(t)
		w.until(ctx, t, nodes[rng.IntN(len(nodes))])
		w.check(ctx, t, f)
		killAll(t, nodes...)
		for _, n := range nodes {
			if err := os.RemoveAll(n.DataDir()); err != nil {
				t.Fatal(err)
			}
		}
	}
	shown(t, "groups", float64(len(groups)), fmt.Sprintf("in %d orders", rounds))
	shown(t, "one group after the last start, median", quantile(took, 0.5).Seconds(), "s")
	atMost(t, "one group after the last start, at worst", quantile(took, 1).Seconds(), whenFull(full, 10.0, 60), "s")
}
