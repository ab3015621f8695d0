package fleet_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"grapevine/chaos/fleet"
	"grapevine/node"
)

// TestLivePartition cuts a fleet of eight into halves under traffic and joins it again. Both halves serve all the time; soon after, all
// have the same knowledge of the time in which they were apart.
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
	if a, b := digests(ctx, t, f.Node("node-0")), digests(ctx, t, f.Node("node-7")); differ(a, b, cut, time.Now()) == "" {
		t.Error("the halves know the same: they were not apart")
	}
	healedAt := load.now()
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	agreed := awaitAgreement(ctx, t, f, cut, healed)
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
	atMost(t, "digests agree after healing", agreed.Seconds(), whenFull(full, 5.0, 30), "s")
	shown(t, "all hear each other after", met.Seconds(), "s")
	atMost(t, "trees hold the same after the last request", same.Seconds(), whenFull(full, 5.0, 30), "s")
}

func digests(ctx context.Context, t *testing.T, n *fleet.Node) map[int64]node.DigestStatus {
	t.Helper()
	g, err := n.Gossip(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[int64]node.DigestStatus)
	for _, d := range g.Digests {
		out[d.StartMS] = d
	}
	return out
}

// differ says in which of the ten seconds that lie within [from, to] two routers do not know the same, "" if in none.
func differ(a, b map[int64]node.DigestStatus, from, to time.Time) string {
	const width = 10_000
	for start := (from.UnixMilli() + width - 1) / width * width; start+width <= to.UnixMilli(); start += width {
		if x, y := a[start], b[start]; x.Count != y.Count || x.XOR != y.XOR {
			return fmt.Sprintf("%d: %+v and %+v", start, x, y)
		}
	}
	return ""
}

// awaitAgreement returns how long after a moment all routers have the same digests of the time before it.
func awaitAgreement(ctx context.Context, t *testing.T, f *fleet.Fleet, from, to time.Time) time.Duration {
	t.Helper()
	for {
		wrong := ""
		first := digests(ctx, t, f.Nodes()[0])
		if len(first) == 0 {
			wrong = "no digests"
		}
		for _, n := range f.Nodes()[1:] {
			if d := differ(first, digests(ctx, t, n), from, to); d != "" {
				wrong = fmt.Sprintf("node-0 and %s in %s", n.Name(), d)
				break
			}
		}
		if wrong == "" {
			return time.Since(to)
		}
		if time.Since(to) > 2*time.Minute {
			t.Fatalf("no agreement two minutes after healing: %s", wrong)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitSameFacts returns how long it takes until all trees hold the same facts, to the last.
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
