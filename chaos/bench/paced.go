//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

type pacedResult struct {
	latencies []time.Duration
	errors    int
}

func (r pacedResult) quantile(q float64) time.Duration { return quantile(r.latencies, q) }

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// runPaced sends rate requests per second over conns keep-alive connections in an open loop.
// Latency counts from the due time, so a stall shows in every request that it delays. It measures
// added latency; at saturation (wrk) latency only restates throughput.
func runPaced(ctx context.Context, bodies [][]byte, addr string, conns, rate int, d time.Duration) (pacedResult, error) {
	total := int(d.Seconds() * float64(rate))
	due := make(chan int, total)
	perConn := make([]pacedResult, conns)
	start := time.Now().Add(50 * time.Millisecond)
	dueTime := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	var wg sync.WaitGroup
	for k := range conns {
		c, err := dialPaced(addr)
		if err != nil {
			close(due)
			wg.Wait()
			return pacedResult{}, err
		}
		wg.Go(func() {
			defer c.Close()
			for i := range due {
				if err := c.roundTrip(bodies[i%len(bodies)]); err != nil {
					perConn[k].errors++
					return
				}
				perConn[k].latencies = append(perConn[k].latencies, time.Since(dueTime(i)))
			}
		})
	}
	pace(ctx, total, dueTime, due)
	close(due)
	wg.Wait()
	var all pacedResult
	for _, r := range perConn {
		all.latencies = append(all.latencies, r.latencies...)
		all.errors += r.errors
	}
	slices.Sort(all.latencies)
	if ctx.Err() != nil {
		return all, ctx.Err()
	}
	if len(all.latencies)+all.errors < total {
		return all, fmt.Errorf("%d of %d paced requests were never sent", total-len(all.latencies)-all.errors, total)
	}
	return all, nil
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

type pacedConn struct {
	net.Conn
	r    *bufio.Reader
	addr string
	out  []byte
}

func dialPaced(addr string) (*pacedConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &pacedConn{Conn: c, r: bufio.NewReader(c), addr: addr}, nil
}

func (c *pacedConn) roundTrip(body []byte) error {
	c.out = fmt.Appendf(c.out[:0], "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", c.addr, len(body))
	c.out = append(c.out, body...)
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(c.out); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}
