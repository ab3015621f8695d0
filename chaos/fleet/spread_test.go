package fleet_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestLiveSpread measures how long one router's placement takes to steer the seven others: the
// first turn goes to a random engine, and the test asks the others where the second would go until
// all choose that engine for its cache.
func TestLiveSpread(t *testing.T) {
	full := live(t)
	f := liveFleet(t, rulesOf)
	samples := whenFull(full, 250, 40)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	load := startTraffic(ctx, t, f, trafficConfig{rate: 4, seed: 1, length: 10 * time.Minute})
	nodes := f.Nodes()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var delays []time.Duration
	for i := range samples {
		from := nodes[i%len(nodes)]
		c := newConversation(uint64(i + 1))
		sent := time.Now()
		if err := c.send(ctx, client, "http://"+from.Addr(), true); err != nil {
			t.Fatal(err)
		}
		placed := len(c.body()) / blockBytes
		c.say(64)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, n := range nodes {
			if n == from {
				continue
			}
			wg.Go(func() {
				for ctx.Err() == nil {
					blocks, follows, err := c.known(ctx, n)
					if err != nil {
						t.Error(err)
						return
					}
					if follows && blocks >= placed*3/4 {
						mu.Lock()
						delays = append(delays, time.Since(sent))
						mu.Unlock()
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
				t.Errorf("%s never learned of conversation %d at %s", n.Name(), i, c.engine)
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	load.stop()
	load.noErrors(t)
	shown(t, "placements seen by seven others", float64(len(delays)), "")
	shown(t, "median until one is used", quantile(delays, 0.5).Seconds()*1e3, "ms")
	atMost(t, "p99 until one is used", quantile(delays, 0.99).Seconds()*1e3, whenFull(full, 250.0, 2500), "ms")
}
