//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

type streamLoad struct {
	count, chunks int
	period        time.Duration
}

type streamResult struct {
	delays    []time.Duration // from the backend's write to the client's read, per chunk, sorted
	errors    int             // streams that failed or ended early
	surplus   int
	firstErr  error
	peakBytes int64
}

// runStreams opens all streams within one period, so that chunks spread evenly, and reads them to
// the end. pid is the proxy's process, or 0. Backend and client share one clock, so stamps and
// arrivals compare.
func runStreams(ctx context.Context, load streamLoad, body []byte, addr string, pid int) streamResult {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(load.chunks)*load.period+30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var all streamResult
	var wg sync.WaitGroup
	start := time.Now()
	for i := range load.count {
		wg.Go(func() {
			sleepUntil(ctx, start.Add(load.period*time.Duration(i)/time.Duration(load.count)))
			delays, surplus, err := readStream(ctx, load, body, addr)
			mu.Lock()
			defer mu.Unlock()
			all.delays = append(all.delays, delays...)
			all.surplus += surplus
			if err != nil {
				all.errors++
				if all.firstErr == nil {
					all.firstErr = err
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-finished:
			running = false
		case <-tick.C:
			if u, err := usageOf(pid); err == nil {
				all.peakBytes = max(all.peakBytes, u.rss)
			}
		}
	}
	slices.Sort(all.delays)
	return all
}

func usageOf(pid int) (usage, error) {
	if pid == 0 {
		return usage{}, nil
	}
	return processUsage(pid)
}

func sleepUntil(ctx context.Context, t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func readStream(ctx context.Context, load streamLoad, body []byte, addr string) (delays []time.Duration, surplus int, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	req := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s: %d\r\n%s: %s\r\nContent-Length: %d\r\n\r\n",
		addr, headerMode, load.chunks, headerPeriod, load.period, len(body))
	if _, err := c.Write(append(req, body...)); err != nil {
		return nil, 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("status %s", resp.Status)
	}
	delays = make([]time.Duration, 0, load.chunks)
	done := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.Equal(line, []byte("data: [DONE]")):
			done = true
		case bytes.Contains(line, []byte(`"usage":{`)):
			surplus++
		default:
			if sent, ok := stampOf(line); ok {
				delays = append(delays, time.Duration(time.Now().UnixNano()-sent))
			}
		}
	}
	if err := lines.Err(); err != nil {
		return delays, surplus, err
	}
	if !done || len(delays) != load.chunks {
		return delays, surplus, fmt.Errorf("stream ended after %d of %d chunks, done %v", len(delays), load.chunks, done)
	}
	return delays, surplus, nil
}

func stampOf(line []byte) (int64, bool) {
	_, rest, ok := bytes.Cut(line, []byte(stampKey))
	if !ok {
		return 0, false
	}
	digits, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok {
		return 0, false
	}
	ns, err := strconv.ParseInt(string(digits), 10, 64)
	return ns, err == nil
}
