package demo

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
)

// When the router is killed and restarted, as shares of a run's arrivals.
const (
	killAt    = 0.4
	restartAt = 0.6
)

// readyTimeout bounds the router's restart on a busy machine.
const readyTimeout = 30 * time.Second

// Kill describes the loss of a router. Times are seconds since the start of the run.
type Kill struct {
	Node     string  `json:"node"`
	KilledS  float64 `json:"killed_s"`    // SIGKILL
	RestartS float64 `json:"restarted_s"` // process restarted
	ReadyS   float64 `json:"ready_s"`     // ready for traffic again
	HitRate  Through `json:"hit_rate"`
}

// Through is the hit rate of requests by arrival in each of the three parts of a run, after the
// warm-up. Null without prompts.
type Through struct {
	Before *float64 `json:"before"` // until the kill
	Down   *float64 `json:"down"`   // until the router is ready again
	After  *float64 `json:"after"`
}

// killing is the script of a run and its observations. The script has its own goroutine; all else
// belongs to the one that plays the traffic.
type killing struct {
	node          *fleet.Node
	kill, restart time.Duration
	happens       func(at time.Duration, what string)
	done          sync.WaitGroup
	ended         []replay.Ended

	mu sync.Mutex // guards the script's fields
	// killed is before the signal, so that no failure it causes has an earlier time; dead is after the process has ended.
	killed, dead, restarted, ready time.Duration
}

// never is later than any request.
const never = time.Duration(math.MaxInt64)

func newKilling(n *fleet.Node, d time.Duration, happens func(at time.Duration, what string)) *killing {
	return &killing{
		node: n, kill: share(d, killAt), restart: share(d, restartAt), happens: happens,
		killed: never, dead: never, restarted: never, ready: never,
	}
}

// start runs the script beside a run that began at the given time. An error in it ends the run.
func (k *killing) start(ctx context.Context, began time.Time, fail context.CancelCauseFunc) {
	k.done.Go(func() {
		if err := k.script(ctx, began); err != nil && ctx.Err() == nil {
			fail(err)
		}
	})
}

func (k *killing) script(ctx context.Context, began time.Time) error {
	mark := func(field *time.Duration) time.Duration {
		at := time.Since(began)
		k.mu.Lock()
		defer k.mu.Unlock()
		*field = at
		return at
	}
	happens := func(at time.Duration, what string) { k.happens(at, "router "+k.node.Name()+" "+what) }
	if !sleepUntil(ctx, began.Add(k.kill)) {
		return ctx.Err()
	}
	killed := mark(&k.killed)
	if err := k.node.Kill(); err != nil {
		return err
	}
	mark(&k.dead)
	happens(killed, "is killed with SIGKILL")
	if !sleepUntil(ctx, began.Add(k.restart)) {
		return ctx.Err()
	}
	happens(mark(&k.restarted), "is started again")
	if err := k.node.Start(); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := k.node.WaitReady(waiting); err != nil {
		return fmt.Errorf("after its restart %w", err)
	}
	happens(mark(&k.ready), "is ready again")
	return nil
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// excuse reports whether the kill broke a request: the router got it before it was dead, had begun to
// answer, and the answer broke off at the kill.
func (k *killing) excuse(e replay.Ended) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	broken := e.Class == replay.Reset || e.Class == replay.Truncated
	return broken && e.Node == k.node.Name() && e.Sent < k.dead && e.End >= k.killed && e.End < k.restarted
}

func (k *killing) observe(e replay.Ended) { k.ended = append(k.ended, e) }

// finish waits for the script and sums up. The traffic must have ended.
func (k *killing) finish(warmup time.Duration) Kill {
	k.done.Wait()
	seconds := func(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
	out := Kill{Node: k.node.Name(), KilledS: seconds(k.killed), RestartS: seconds(k.restarted), ReadyS: seconds(k.ready)}
	out.HitRate = Through{k.hitRate(warmup, k.killed), k.hitRate(k.killed, k.ready), k.hitRate(k.ready, never)}
	return out
}

func (k *killing) hitRate(from, to time.Duration) *float64 {
	var prompt, cached float64
	for i := range k.ended {
		e := &k.ended[i]
		if e.Failed || e.PromptTokens < 0 || e.At < from || e.At >= to {
			continue
		}
		prompt += float64(e.PromptTokens)
		cached += float64(max(0, e.CachedTokens))
	}
	if prompt == 0 {
		return nil
	}
	rate := math.Round(cached/prompt*1e6) / 1e6
	return &rate
}
