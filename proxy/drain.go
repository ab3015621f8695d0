package proxy

import (
	"context"
	"time"
)

// forceGrace is for sending errors to interrupted clients.
const forceGrace = 500 * time.Millisecond

// freshGrace is for the first byte of a connection that was accepted just before the drain: the kernel
// had answered its client before this process took it.
const freshGrace = 2 * time.Second

// arrivalGrace is for requests that still arrive: enough for any body on a working network.
const arrivalGrace = 5 * time.Second

// Shutdown drains the proxy: /readyz turns 503, after DrainGrace listeners and idle connections
// close, requests run to their end. When ctx ends or at a second call, streams end with an error
// event, other requests with 503, and all calls return an error. Shutdown returns when all
// goroutines have ended, at the latest half a second after ctx.
func (p *Proxy) Shutdown(ctx context.Context) error {
	if p.draining.Swap(true) {
		p.hurry()
		<-p.finished
		return p.result
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.hurried, cancel)()
	p.result = p.drain(ctx)
	close(p.finished)
	return p.result
}

func (p *Proxy) drain(ctx context.Context) error {
	p.Ready(false)
	p.cfg.Log.Info().Int("requests", p.InFlight()).Msg("draining: no new connections; running requests may end")
	_ = wait(ctx, p.tuned.Load().Timeouts.DrainGrace) // an error changes nothing here
	p.closeListeners()
	p.accepting.Wait() // what was accepted until then is served: its client has no other place to go
	var err error
	for began := time.Now(); !p.closeIdle(connIdle) && err == nil; {
		if time.Since(began) > freshGrace {
			p.closeIdle(connFresh)
		}
		if time.Since(began) > arrivalGrace {
			p.closeIdle(connReading)
		}
		err = wait(ctx, 10*time.Millisecond)
	}
	if err != nil {
		p.cfg.Log.Warn().Int("requests", p.InFlight()).Msg("drain_timeout has passed: cutting the requests that still run")
		p.forceClosed()
	}
	p.served.Wait()
	p.mu.Lock()
	done := p.watchDone
	p.mu.Unlock()
	close(p.watchStop)
	if done != nil {
		<-done
		if p.attended != nil {
			<-p.attended
		}
		p.departures.close()
	}
	p.cancel()
	p.upstreams.close()
	p.cfg.Log.Info().Msg("closed")
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Proxy) closeListeners() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for ln := range p.listeners {
		delete(p.listeners, ln)
		ln.Close()
	}
}

// closeIdle reports whether no connection is left.
func (p *Proxy) closeIdle(state int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if c.state.CompareAndSwap(state, connClosing) {
			c.raw.Close()
		}
	}
	return len(p.conns) == 0
}

func (p *Proxy) forceClosed() {
	p.cancel()
	for _, c := range p.openConns() {
		c.interrupt(forced)
	}
	until := time.Now().Add(forceGrace)
	for time.Now().Before(until) {
		p.closeIdle(connReading)
		p.closeIdle(connFresh)
		if p.closeIdle(connIdle) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.raw.Close()
	}
}
