//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"grapevine.example/chaos/programs"
)

type streamLoad struct {
	count, chunks int
	period        time.Duration
}

// slowStreams take ten seconds.
var slowStreams = streamLoad{count: 1000, chunks: 50, period: 200 * time.Millisecond}

// runStreams opens all streams within one period, so that chunks spread evenly, and reads them to
// the end. A time is that from the backend's write of a chunk to the client's read; both share one
// clock. Streams that failed, ended early or brought usage that was not asked for are errors. pid is
// the proxy's process, or 0.
func runStreams(ctx context.Context, load streamLoad, body []byte, addr string, pid int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(load.chunks)*load.period+30*time.Second)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // guards the next two
		delays []time.Duration
		failed []error
	)
	start := time.Now()
	for i := range load.count {
		wg.Go(func() {
			time.Sleep(time.Until(start.Add(load.period * time.Duration(i) / time.Duration(load.count))))
			d, err := readStream(ctx, load, body, addr)
			mu.Lock()
			defer mu.Unlock()
			delays = append(delays, d...)
			if err != nil {
				failed = append(failed, err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var peak int64
	for running := true; running; {
		select {
		case <-finished:
			running = false
		case <-tick.C:
			_, rss := programs.Usage(pid)
			peak = max(peak, rss)
		}
	}
	if len(failed) > 0 {
		fmt.Fprintf(os.Stderr, "%d streams failed, the first because: %v\n", len(failed), failed[0])
	}
	s := sampleOf(delays, len(failed))
	s.values[memory] = float64(peak) / (1 << 20)
	return s, nil
}

func readStream(ctx context.Context, load streamLoad, body []byte, addr string) (delays []time.Duration, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := programs.Post(ctx, client, addr, body, http.Header{headerMode: {strconv.Itoa(load.chunks)}, headerPeriod: {load.period.String()}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	delays = make([]time.Duration, 0, load.chunks)
	done := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.Equal(line, []byte("data: [DONE]")):
			done = true
		case bytes.Contains(line, []byte(`"usage":{`)):
			return delays, errors.New("usage that was not asked for")
		default:
			if sent, ok := stampOf(line); ok {
				delays = append(delays, time.Duration(time.Now().UnixNano()-sent))
			}
		}
	}
	if err := lines.Err(); err != nil {
		return delays, err
	}
	if !done || len(delays) != load.chunks {
		return delays, fmt.Errorf("stream ended after %d of %d chunks, done %v", len(delays), load.chunks, done)
	}
	return delays, nil
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
