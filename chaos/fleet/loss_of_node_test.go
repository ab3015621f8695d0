package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/node/admin"
)

func TestLiveKill(t *testing.T) {
	full := live(t)
	f := liveFleet(t, func(cfg *fleet.Config) {
		rulesOf(cfg)
		cfg.Guests = 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	part := whenFull(full, 40*time.Second, 8*time.Second)
	victim := f.Node("node-3")
	preload(ctx, t, f, whenFull(full, 10_000, 1500))
	probes := placeProbes(ctx, t, f, whenFull(full, 400, 100))

	dead := &absence{node: victim.Name()}
	load := startTraffic(ctx, t, f, trafficConfig{rate: whenFull(full, 12.0, 6), seed: 2, length: 4 * part, excuse: dead.excuse})
	at := func(when time.Duration) {
		t.Helper()
		if err := sleep(ctx, when-load.now()); err != nil {
			t.Fatal(err)
		}
	}
	at(2 * part)
	killed := load.now()
	dead.begin(killed)
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	at(3 * part)
	dead.end(load.now())
	peers := knownProbes(ctx, t, f.Node("node-0"), probes)
	cameBack := comeBack(ctx, t, victim)
	// The victim first: what the others learn meanwhile counts against it.
	facts := factsOf(ctx, t, victim)
	allFacts := factsOf(ctx, t, f.Node("node-0"))
	back := knownProbes(ctx, t, victim, probes)
	after := load.now()
	load.wait(t)
	load.noErrors(t)
	if n := load.served(killed+part/4, 3*part-part/4)[victim.Name()]; n > 0 {
		t.Errorf("%d answers from a router that is dead", n)
	}

	survivors := func(e *turnEnd) bool { return e.Node != victim.Name() }
	before, n0 := load.followed(part, killed, survivors)
	down, n1 := load.followed(killed, 3*part, survivors)
	again, n2 := load.followed(after, 4*part, nil)
	shown(t, "follow-ups before, while down, after", float64(n0), fmt.Sprintf("and %d and %d", n1, n2))
	shown(t, "answers cut on the killed router", float64(load.result.Cut), "")
	shown(t, "repeated connections", float64(load.result.Live.Retried), "")
	shown(t, "hits of what was possible, before", 100*before, "%")
	point := whenFull(full, 1.0, 10)
	atLeast(t, "hits at the survivors, while down", 100*down, 100*before-point, "%")
	atLeast(t, "hits of all, after the restart", 100*again, 100*before-point, "%")
	shown(t, "known blocks of probes at a survivor", float64(peers), "")
	atLeast(t, "of them known to the restarted when it became ready", 100*float64(back)/float64(peers), 99, "%")
	shown(t, "live facts at a survivor", float64(allFacts.Count), "")
	atLeast(t, "of them held by the restarted when it became ready", 100*float64(facts.Count)/float64(allFacts.Count), 99, "%")
	atMost(t, "ready after the restart", cameBack.Seconds(), whenFull(full, 5.0, 20), "s")
}

// absence is the time in which a router is dead. Safe for concurrent use.
type absence struct {
	node string

	mu       sync.Mutex
	from, to time.Duration
}

func (a *absence) begin(at time.Duration) {
	a.mu.Lock()
	a.from = at
	a.mu.Unlock()
}

func (a *absence) end(at time.Duration) {
	a.mu.Lock()
	a.to = at
	a.mu.Unlock()
}

// excuse reports whether a failed answer had begun at this router and broke off at its death, which
// may follow the begin of the absence after a while.
func (a *absence) excuse(e replay.Ended) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	broken := e.Class == replay.Reset || e.Class == replay.Truncated
	return broken && e.Node == a.node && a.from > 0 && e.End >= a.from && (a.to == 0 || e.End < a.to)
}

func placeProbes(ctx context.Context, t *testing.T, f *fleet.Fleet, count int) []*conversation {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	probes := make([]*conversation, count)
	for i := range probes {
		c := newConversation(1<<32 + uint64(i))
		if err := c.send(ctx, client, f.URL(), true); err != nil {
			t.Fatal(err)
		}
		c.say(64)
		probes[i] = c
	}
	last := probes[count-1]
	for _, n := range f.Nodes() {
		for {
			blocks, _, err := last.known(ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			if blocks > 0 {
				break
			}
			if err := sleep(ctx, 10*time.Millisecond); err != nil {
				t.Fatalf("%s never learned of the last probe", n.Name())
			}
		}
	}
	return probes
}

func knownProbes(ctx context.Context, t *testing.T, n *fleet.Node, probes []*conversation) (blocks int) {
	t.Helper()
	for _, c := range probes {
		b, _, err := c.known(ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		blocks += b
	}
	return blocks
}

func comeBack(ctx context.Context, t *testing.T, n *fleet.Node) time.Duration {
	t.Helper()
	begun := time.Now()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return time.Since(begun)
}

func factsOf(ctx context.Context, t *testing.T, n *fleet.Node) *admin.FactsStatus {
	t.Helper()
	g, err := n.GossipFacts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return g.Facts
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
