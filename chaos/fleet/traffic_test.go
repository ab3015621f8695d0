package fleet_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

const blockBytes = 512

func rulesOf(cfg *fleet.Config) { cfg.Settings["rules"] = placeRule() }

type trafficConfig struct {
	rate   float64
	seed   uint64
	length time.Duration
	excuse func(replay.Ended) bool
}

type traffic struct {
	cancel context.CancelFunc
	done   chan struct{}
	result replay.Result
	err    error

	mu       sync.Mutex
	began    time.Time
	ended    []turnEnd
	sessions map[int]int
}

type turnEnd struct {
	replay.Ended
	possible int // tokens that an engine with the whole conversation could have had cached; 0: a first turn, or unknown
}

func startTraffic(ctx context.Context, t *testing.T, f *fleet.Fleet, cfg trafficConfig) *traffic {
	t.Helper()
	w := &workload.Sessions{
		Label: "live", Rate: cfg.rate, Continue: 0.8, MaxTurns: 12, Think: 500 * time.Millisecond,
		SharedTokens: 512, Pool: 4, Suffix: 192, BlockTokens: 64, Duration: cfg.length,
		Prompt: workload.CDF{{V: 1024, P: 0}, {V: 4096, P: 1}},
		Output: workload.CDF{{V: 8, P: 0}, {V: 48, P: 1}},
	}
	src, err := w.Source(workload.Options{Seed: cfg.seed})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	tr := &traffic{cancel: cancel, done: make(chan struct{}), sessions: make(map[int]int)}
	started := make(chan struct{})
	go func() {
		defer close(tr.done)
		tr.result, tr.err = replay.Run(ctx, replay.Config{
			Targets: []string{f.URL()}, Model: model, Seed: cfg.seed, Timeout: time.Minute, Backends: f.EngineNames(), Nodes: len(f.Nodes()),
			NewConnections: true, Retries: 2, Excuse: cfg.excuse, Observe: tr.observe,
			Started: func(at time.Time) {
				tr.mu.Lock()
				tr.began = at
				tr.mu.Unlock()
				close(started)
			},
		}, src)
	}()
	select {
	case <-started:
	case <-tr.done:
	}
	t.Cleanup(tr.stop)
	return tr
}

func (tr *traffic) observe(e replay.Ended) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	end := turnEnd{Ended: e}
	if before, ok := tr.sessions[e.Session]; ok && e.Turn > 1 {
		end.possible = before
	}
	delete(tr.sessions, e.Session)
	if !e.Failed {
		tr.sessions[e.Session] = e.PromptTokens + e.OutputTokens
	}
	tr.ended = append(tr.ended, end)
}

func (tr *traffic) stop() {
	tr.cancel()
	<-tr.done
}

func (tr *traffic) wait(t *testing.T) {
	t.Helper()
	<-tr.done
	if tr.err != nil {
		t.Fatal(tr.err)
	}
}

func (tr *traffic) now() time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return time.Since(tr.began)
}

func (tr *traffic) noErrors(t *testing.T) {
	t.Helper()
	if tr.err != nil && !errors.Is(tr.err, context.Canceled) {
		t.Error(tr.err)
	}
	if tr.result.Requests == 0 {
		t.Error("no traffic")
	}
	for class, n := range tr.result.Live.Errors {
		t.Errorf("%d of %d requests failed: %s, e.g. %s", n, tr.result.Requests, class, tr.result.Live.Sample[class])
	}
}

// followed returns the share of cacheable tokens that were cached, over later turns in [from, to)
// that keep accepts, and their number. Engines cache whole blocks only.
func (tr *traffic) followed(from, to time.Duration, keep func(*turnEnd) bool) (share float64, turns int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var cached, possible float64
	for i := range tr.ended {
		e := &tr.ended[i]
		if e.Failed || e.possible == 0 || e.At < from || e.At >= to || keep != nil && !keep(e) {
			continue
		}
		turns++
		possible += float64(e.possible)
		cached += float64(max(0, e.CachedTokens))
	}
	return cached / possible, turns
}

func (tr *traffic) served(from, to time.Duration) map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	out := make(map[string]int)
	for i := range tr.ended {
		if e := &tr.ended[i]; !e.Failed && e.At >= from && e.At < to {
			out[e.Node]++
		}
	}
	return out
}
