package fleet_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

func TestLiveLeader(t *testing.T) {
	full := live(t)
	voters := whenFull(full, 5, 3)
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Founders = whenFull(full, liveNodes, voters), voters
		cfg.Engines = cfg.Nodes
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	rounds, window := whenFull(full, 5, 1), whenFull(full, 15*time.Second, 2*time.Second)
	w := newWrites(t)
	dead := new(absences)
	load := startTraffic(ctx, t, f, trafficConfig{rate: whenFull(full, 12.0, 6), seed: 6, length: 10 * time.Minute, excuse: dead.excuse})
	var elected, known, took []time.Duration
	var failed int
	before, after := new(calm), new(calm)
	for range rounds {
		agree(ctx, t, f, voters)
		quiet := beginWindow(ctx, t, load, f.Nodes())
		if err := sleep(ctx, window); err != nil {
			t.Fatal(err)
		}
		leader, led := leaderNow(ctx, t, f, voters)
		survivors := without(f.Nodes(), leader)
		before.add(ctx, t, load, survivors, quiet)
		disturbed := beginWindow(ctx, t, load, survivors)
		dead.begin(leader, load.now())
		loss := loseLeader(ctx, t, leader, led, survivors, w)
		elected, known, took = append(elected, loss.elected), append(known, loss.known), append(took, loss.took...)
		failed += loss.failed
		if err := sleep(ctx, window); err != nil {
			t.Fatal(err)
		}
		after.add(ctx, t, load, survivors, disturbed)
		dead.end(load.now())
		comeBack(ctx, t, leader)
	}
	agree(ctx, t, f, voters)
	w.check(ctx, t, f)
	load.stop()
	load.noErrors(t)
	t.Logf("elected after %v, known to all after %v, first writes took %v", elected, known, took)
	shown(t, "requests", float64(load.result.Requests), fmt.Sprintf("of them cut on a killed leader %d, connections repeated %d", load.result.Cut, load.result.Live.Retried))
	shown(t, "another leads after, median", quantile(elected, 0.5).Seconds(), fmt.Sprintf("s (of %d)", rounds))
	atMost(t, "another leads after, at worst", quantile(elected, 1).Seconds(), whenFull(full, 1.0, 30), "s")
	shown(t, "all know it after, at worst", quantile(known, 1).Seconds(), "s")
	shown(t, "a write sent in that moment, at worst", quantile(took, 1).Seconds(), fmt.Sprintf("s (of %d)", len(took)))
	shown(t, "of them repeated", float64(failed), "")
	compare(t, full, before, after)
}

func compare(t *testing.T, full bool, before, after *calm) {
	t.Helper()
	for _, q := range []float64{0.5, 0.99} {
		is := func(c *calm) float64 { return 1e6 * c.overhead.quantile(q) }
		name := fmt.Sprintf("p%g of the survivors' overhead", 100*q)
		shown(t, name+", before", is(before), fmt.Sprintf("us (of %g)", before.overhead[math.Inf(1)]))
		if !full {
			shown(t, name+", after", is(after), fmt.Sprintf("us (of %g)", after.overhead[math.Inf(1)]))
		} else {
			// Buckets are a factor of two wide, and other programs cost milliseconds.
			atMost(t, name+", after", is(after), 2*is(before)+whenFull(q < 0.9, 100.0, 5000), "us")
		}
		shown(t, fmt.Sprintf("p%g of their first tokens, before", 100*q), 1e3*quantile(before.first, q).Seconds(), "ms")
		shown(t, fmt.Sprintf("p%g of their first tokens, after", 100*q), 1e3*quantile(after.first, q).Seconds(), "ms")
	}
}

type lossOfLeader struct {
	elected time.Duration
	known   time.Duration
	took    []time.Duration
	failed  int
}

func leaderNow(ctx context.Context, t *testing.T, f *fleet.Fleet, voters int) (*fleet.Node, *admin.RaftStatus) {
	t.Helper()
	for {
		n := agree(ctx, t, f, voters).leader
		if st, err := n.Raft(ctx); err == nil && st.Role == "leader" {
			return n, st
		}
	}
}

func loseLeader(ctx context.Context, t *testing.T, leader *fleet.Node, led *admin.RaftStatus, survivors []*fleet.Node, w *writes) (loss lossOfLeader) {
	t.Helper()
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	loss.elected = math.MaxInt64
	killed := time.Now() // taken before the kill, so that errors count against the group
	for _, n := range survivors {
		every := 100 * time.Millisecond
		if slices.ContainsFunc(led.Servers, func(s raftstore.ServerStatus) bool { return s.Voter && s.Name == n.Name() }) {
			every = 10 * time.Millisecond
		}
		wg.Go(func() {
			if err := newLeader(ctx, n, led, every); err != nil {
				t.Errorf("%s never heard of another leader: %v", n.Name(), err)
				return
			}
			took := time.Since(killed)
			mu.Lock()
			defer mu.Unlock()
			loss.elected, loss.known = min(loss.elected, took), max(loss.known, took)
		})
	}
	killAll(t, leader)
	for _, n := range survivors {
		wg.Go(func() {
			began := time.Now()
			failed := w.until(ctx, t, n)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			loss.took, loss.failed = append(loss.took, took), loss.failed+failed
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return loss
}

func newLeader(ctx context.Context, n *fleet.Node, led *admin.RaftStatus, every time.Duration) error {
	for {
		st, err := n.Raft(ctx)
		if err == nil && st.Term > led.Term && st.Leader != "" && st.Leader != led.ID {
			return nil
		}
		if err := sleep(ctx, every); err != nil {
			return err
		}
	}
}

type calm struct {
	overhead histogram
	first    []time.Duration
}

type windowStart struct {
	at       time.Duration
	overhead map[string]histogram
}

func beginWindow(ctx context.Context, t *testing.T, load *traffic, nodes []*fleet.Node) (s windowStart) {
	t.Helper()
	s.overhead = make(map[string]histogram)
	for _, n := range nodes {
		s.overhead[n.Name()] = overheadOf(ctx, t, n)
	}
	s.at = load.now()
	return s
}

func (c *calm) add(ctx context.Context, t *testing.T, load *traffic, nodes []*fleet.Node, s windowStart) {
	t.Helper()
	if c.overhead == nil {
		c.overhead = make(histogram)
	}
	names := make(map[string]bool)
	for _, n := range nodes {
		names[n.Name()] = true
		for le, count := range overheadOf(ctx, t, n) {
			c.overhead[le] += count - s.overhead[n.Name()][le]
		}
	}
	load.mu.Lock()
	defer load.mu.Unlock()
	for i := range load.ended {
		if e := &load.ended[i]; e.At >= s.at && names[e.Node] && e.TTFT >= 0 {
			c.first = append(c.first, e.At+e.TTFT-e.Sent)
		}
	}
}

type histogram map[float64]float64

func overheadOf(ctx context.Context, t *testing.T, n *fleet.Node) histogram {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.AdminAddr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	h := make(histogram)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "grapevine_overhead_seconds_bucket{")
		if !ok {
			continue
		}
		_, rest, _ = strings.Cut(rest, `le="`)
		bound, _, _ := strings.Cut(rest, `"`)
		le, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if h[le], err = strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil || len(h) == 0 {
		t.Fatalf("%s reports no overhead: %v", n.Name(), err)
	}
	return h
}

func (h histogram) quantile(q float64) float64 {
	rank := q * h[math.Inf(1)]
	if rank == 0 {
		return math.NaN()
	}
	below, low := 0.0, 0.0
	for _, le := range slices.Sorted(maps.Keys(h)) {
		switch {
		case math.IsInf(le, 1):
			return low
		case h[le] >= rank:
			return low + (le-low)*(rank-below)/(h[le]-below)
		}
		below, low = h[le], le
	}
	return low
}

func TestHistogramQuantile(t *testing.T) {
	h := histogram{1: 10, 2: 30, 4: 100, math.Inf(1): 200}
	for q, want := range map[float64]float64{0.05: 1, 0.1: 1.5, 0.15: 2, 0.5: 4, 0.75: 4} {
		if got := h.quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("q %g: %g, want %g", q, got, want)
		}
	}
	if got := (histogram{1: 0, math.Inf(1): 0}).quantile(0.5); !math.IsNaN(got) {
		t.Errorf("of nothing: %g", got)
	}
}
