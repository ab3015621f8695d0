package proxy

import (
	"context"
	"time"
)

// forceGrace is how long the requests that a passed deadline interrupts are given to say so to their clients.
const forceGrace = 500 * time.Millisecond

// arrivalGrace is how long a request that is still arriving when the listeners are closed may take to become whole:
// enough for any body on a working network, and what a client that trickles can delay a drain by.
const arrivalGrace = 5 * time.Second

// Shutdown drains the proxy and stops it: /readyz turns 503, responses carry Connection: close, after DrainGrace the
// listeners and the idle connections are closed, and what is in flight is waited for. When ctx ends, or on a second call
// of Shutdown, what is left is interrupted: streams end with an error event, other requests with 503, and then all
// connections are closed. It returns nil if nothing was interrupted, else ctx's error or context.Canceled.
//
// It returns when every goroutine of the proxy has ended, half a second or so after ctx at the latest. A second call
// waits for the first to end and returns its result.
func (p *Proxy) Shutdown(ctx context.Context) error {
	first := false
	p.shutdown.Do(func() { first = true })
	if !first {
		p.forced.Do(func() { close(p.force) })
		<-p.finished
		return p.result
	}
	p.result = p.drain(ctx)
	close(p.finished)
	return p.result
}

func (p *Proxy) drain(ctx context.Context) error {
	p.Ready(false)
	p.draining.Store(true)
	p.cfg.Log.Info().Int("requests", p.InFlight()).Msg("draining")
	_ = p.wait(ctx, p.tuned.Load().Timeouts.DrainGrace) // cut short or not, the next steps are the same
	p.closeListeners()
	var err error
	for cut := time.Now().Add(arrivalGrace); !p.closeIdle(connIdle) && err == nil; {
		if time.Now().After(cut) {
			p.closeIdle(connReading)
		}
		err = p.wait(ctx, 10*time.Millisecond)
	}
	if err != nil {
		p.cfg.Log.Warn().Int("requests", p.InFlight()).Msg("drain deadline passed, interrupting requests")
		p.forceClosed()
	}
	p.served.Wait()
	p.mu.Lock()
	done := p.watchDone
	p.mu.Unlock()
	close(p.watchStop)
	if done != nil {
		<-done
		p.departures.close()
	}
	p.cancel()
	p.upstreams.close()
	p.models.wait()
	p.cfg.Log.Info().Msg("drained")
	return err
}

// wait returns nil after d, and earlier with an error when the drain is to be cut short.
func (p *Proxy) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.force:
		return context.Canceled
	}
}

// closeListeners makes Serve return and takes no more connections.
func (p *Proxy) closeListeners() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for ln := range p.listeners {
		delete(p.listeners, ln)
		ln.Close()
	}
}

// closeIdle closes the connections in a state and reports whether none at all is left.
func (p *Proxy) closeIdle(state int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns.list {
		if c.state.CompareAndSwap(state, connClosing) {
			c.raw.Close()
		}
	}
	return len(p.conns.list) == 0
}

// forceClosed interrupts every request, gives the answers a moment to leave, and closes every connection.
func (p *Proxy) forceClosed() {
	p.cancel()
	p.mu.Lock()
	conns := append([]*clientConn(nil), p.conns.list...)
	p.mu.Unlock()
	for _, c := range conns {
		c.interrupt(forced)
	}
	until := time.Now().Add(forceGrace)
	for time.Now().Before(until) {
		p.closeIdle(connReading)
		if p.closeIdle(connIdle) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns.list {
		c.raw.Close()
	}
}
