package fleet_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestLivePartition(t *testing.T) {
	full := live(t)
	if !isolated(t, true) {
		return
	}
	f := liveFleet(t, func(cfg *fleet.Config) {
		rulesOf(cfg)
		cfg.Switched = true
	})
	apart := whenFull(full, 60*time.Second, 20*time.Second)
	lead := whenFull(full, 15*time.Second, 5*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	load := startTraffic(ctx, t, f, trafficConfig{rate: 6, seed: 3, length: 10 * time.Minute})
	if err := sleep(ctx, lead); err != nil {
		t.Fatal(err)
	}
	left := []string{"node-0", "node-1", "node-2", "node-3"}
	right := []string{"node-4", "node-5", "node-6", "node-7"}
	cut, cutAt := time.Now(), load.now()
	if err := f.Partition(left, right); err != nil {
		t.Fatal(err)
	}
	if err := sleep(ctx, apart); err != nil {
		t.Fatal(err)
	}
	if published, applied := positions(ctx, t, f.Nodes()); applied["node-7"]["node-0"] >= published["node-0"] {
		t.Error("a node has all batches of the other half: they were not apart")
	}
	published, _ := positions(ctx, t, f.Nodes())
	healedAt := load.now()
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	agreed := awaitApplied(ctx, t, f, published, healed)
	if err := f.WaitMesh(ctx); err != nil {
		t.Fatal(err)
	}
	met := time.Since(healed)
	load.stop()
	load.noErrors(t)
	same := awaitSameFacts(ctx, t, f)
	served := load.served(cutAt, healedAt)
	least := -1
	for _, n := range f.Nodes() {
		if c := served[n.Name()]; least < 0 || c < least {
			least = c
		}
	}
	followed, turns := load.followed(cutAt, healedAt, nil)
	shown(t, "apart", healed.Sub(cut).Seconds(), "s")
	atLeast(t, "answers of the least busy router while apart", float64(least), 1, "")
	shown(t, "hits of what was possible while apart", 100*followed, fmt.Sprintf("%% of %d follow-ups", turns))
	atMost(t, "all published during the partition is applied after healing", agreed.Seconds(), whenFull(full, 5.0, 30), "s")
	shown(t, "all hear each other after", met.Seconds(), "s")
	atMost(t, "trees hold the same after the last request", same.Seconds(), whenFull(full, 5.0, 30), "s")
}

func positions(ctx context.Context, t *testing.T, nodes []*fleet.Node) (published map[string]uint64, applied map[string]map[string]uint64) {
	t.Helper()
	published, applied = make(map[string]uint64), make(map[string]map[string]uint64)
	for _, n := range nodes {
		g, err := n.Gossip(ctx)
		if err != nil {
			t.Fatal(err)
		}
		published[n.Name()] = g.Position
		applied[n.Name()] = make(map[string]uint64)
		for name, p := range g.Peers {
			if !p.Incomplete {
				applied[n.Name()][name] = p.Position
			}
		}
	}
	return published, applied
}

func awaitApplied(ctx context.Context, t *testing.T, f *fleet.Fleet, published map[string]uint64, from time.Time) time.Duration {
	t.Helper()
	for {
		wrong := ""
		_, applied := positions(ctx, t, f.Nodes())
		for subscriber, of := range applied {
			for publisher, next := range published {
				if publisher != subscriber && of[publisher] < next {
					wrong = fmt.Sprintf("%s has applied %d of %d batches of %s", subscriber, of[publisher], next, publisher)
				}
			}
		}
		if wrong == "" {
			return time.Since(from)
		}
		if time.Since(from) > 2*time.Minute {
			t.Fatalf("two minutes after healing: %s", wrong)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

func awaitSameFacts(ctx context.Context, t *testing.T, f *fleet.Fleet) time.Duration {
	t.Helper()
	for began := time.Now(); ; {
		wrong := ""
		first := factsOf(ctx, t, f.Nodes()[0])
		for _, n := range f.Nodes()[1:] {
			if d := factsOf(ctx, t, n); !reflect.DeepEqual(d, first) || d.Count == 0 {
				wrong = fmt.Sprintf("node-0 has %+v, %s %+v", first, n.Name(), d)
			}
		}
		if wrong == "" {
			return time.Since(began)
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("trees differ two minutes after the last request: %s", wrong)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}
