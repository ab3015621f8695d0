//go:build linux

package main

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"grapevine.example/chaos/programs"
)

func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]) / float64(time.Millisecond)
}

// sampleOf sorts the times.
func sampleOf(times []time.Duration, errors int) sample {
	slices.Sort(times)
	return sample{units: len(times), errors: errors, values: map[string]float64{p50: quantile(times, 0.50), p99: quantile(times, 0.99)}}
}

// runPaced sends rate requests per second over conns keep-alive connections in an open loop.
// Latency counts from the due time, so a stall shows in every request that it delays. It measures
// added latency; at saturation (wrk) latency only restates throughput.
func runPaced(ctx context.Context, bodies [][]byte, addr string, conns, rate int, d time.Duration) (sample, error) {
	total := int(d.Seconds() * float64(rate))
	due := make(chan int, total)
	perConn := make([]struct {
		latencies []time.Duration
		errors    int
	}, conns)
	start := time.Now().Add(50 * time.Millisecond)
	dueTime := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: conns}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	for k := range conns {
		wg.Go(func() {
			for i := range due {
				if err := programs.Ask(ctx, client, addr, bodies[i%len(bodies)]); err != nil {
					perConn[k].errors++
					continue
				}
				perConn[k].latencies = append(perConn[k].latencies, time.Since(dueTime(i)))
			}
		})
	}
	pace(ctx, total, dueTime, due)
	close(due)
	wg.Wait()
	var latencies []time.Duration
	failed := 0
	for _, r := range perConn {
		latencies = append(latencies, r.latencies...)
		failed += r.errors
	}
	return sampleOf(latencies, failed), ctx.Err()
}

// pace sends 0 to total-1, each when due. It sleeps in the kernel on its own thread, because the
// runtime's timers can be a millisecond late, more than the measured latency.
func pace(ctx context.Context, total int, dueTime func(int) time.Time, due chan<- int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := 0; i < total && ctx.Err() == nil; i++ {
		for wait := time.Until(dueTime(i)); wait > 0; wait = time.Until(dueTime(i)) {
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil) // after a signal the loop sleeps the rest
		}
		due <- i
	}
}
