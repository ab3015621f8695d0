package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
)

// TestAlertsOfTheSlow is TestAlerts for what needs time, a network of its own and the program with disk faults: engines that are too slow,
// a disk that is, and a router that reports of its peers do not reach, although it hears that they live.
func TestAlertsOfTheSlow(t *testing.T) {
	if os.Getenv(alertsEnv) == "" {
		t.Skip("make test-alerts")
	}
	program := instrumented(t)
	if !isolated(t, true) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
	defer cancel()
	f := start(t, fleet.Config{
		Binary: program, Nodes: 3, Engines: 2, Engine: fastEngine(), Switched: true, Seed: 1, Settings: map[string]any{"log_level": "info"},
	})
	p := startPrometheus(ctx, t, f)
	cut, other, struck := f.Node("node-0"), f.Node("node-1"), f.Node("node-2")
	p.awaitEnd(ctx, t, "FirstTokenSlow", "SlowDisk", "Blind")

	slow := func(kind string) {
		for _, e := range f.Engines() {
			if err := e.Server().Inject(engine.Fault{Kind: kind, Factor: 250}); err != nil { // a second for each token
				t.Fatal(err)
			}
		}
	}
	slow("slow")
	stop := startWaiting(ctx, t, cut)

	stopWrites := startWrites(ctx, t, other)
	p.fault(ctx, t, "a disk is slow", func() error { return struck.SlowDisk(5 * time.Second) }, struck.HealDisk, "SlowDisk")
	stopWrites()

	p.fault(ctx, t, "only UDP reaches a router from its peers", func() error {
		for _, peer := range []*fleet.Node{other, struck} {
			if err := f.SetLink(peer.Name(), cut.Name(), fleet.Link{NoTCP: true}); err != nil {
				return err
			}
		}
		return nil
	}, f.Heal, "Blind")

	p.await(ctx, t, "first tokens after 40 s", "FirstTokenSlow")
	slow("none")
	stop()
	p.awaitEnd(ctx, t, "FirstTokenSlow")
}

// startWaiting sends new prompts to a node, two in each second, whose answers have 40 tokens; stop leaves those under way and waits.
func startWaiting(ctx context.Context, t *testing.T, n *fleet.Node) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	stop = func() { cancel(); all.Wait() }
	t.Cleanup(stop)
	all.Go(func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for id := uint64(1); sleep(ctx, 500*time.Millisecond) == nil; id++ {
			body := fmt.Sprintf(`{"model":%q,"max_tokens":40,"messages":[{"role":"user","content":"%d is a number"}]}`, model, id)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			all.Go(func() {
				if resp, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
	})
	return stop
}

// startWrites changes the fleet's agreed state through a node again and again: disks that nobody writes to are not slow.
func startWrites(ctx context.Context, t *testing.T, through *fleet.Node) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	stop = func() { cancel(); all.Wait() }
	t.Cleanup(stop)
	all.Go(func() {
		for sleep(ctx, 100*time.Millisecond) == nil {
			for _, action := range []string{"drain", "resume"} {
				_, _ = through.SetBackendState(ctx, []string{"engine-1"}, action, "") // fails while a new leader is elected
			}
		}
	})
	return stop
}
