package proxy

import "time"

// watch looks at every client connection once per period, so that no request pays for a timer or a goroutine of its own:
// a departed client, a passed deadline and a client that does not read all end the request here. The cost is one pass
// over the connections, and one poll(2) per request that is still running by then; most are not.
//
// The alternative, one goroutine per request parked in the runtime's poller on the client's socket, hears of a departure
// in under a millisecond and costs about a fifth of the CPU of a short request (DESIGN.md, "Cancellation").
func (p *Proxy) watch(done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(p.cfg.Timeouts.Watch)
	defer ticker.Stop()
	var scratch []*clientConn
	for {
		select {
		case <-p.watchStop:
			return
		case <-ticker.C:
			scratch = p.sweep(scratch[:0])
			p.sweeps.Add(1)
		}
	}
}

// Sweeps counts the passes over the connections that have ended. While it stands still, with a listener open, no client
// that leaves and no deadline is noticed.
func (p *Proxy) Sweeps() uint64 { return p.sweeps.Load() }

// sweep makes one pass. It works on a copy of the list, since asking the kernel under the lock would hold up new
// connections.
func (p *Proxy) sweep(scratch []*clientConn) []*clientConn {
	now := int64(time.Since(p.epoch))
	p.clock.Store(now)
	p.mu.Lock()
	scratch = append(scratch, p.conns.list...)
	p.mu.Unlock()
	stall := int64(p.tuned.Load().Timeouts.Write)
	for _, c := range scratch {
		if since := c.writing.Load(); since != 0 && now-since > stall {
			c.interrupt(stalled)
			c.raw.Close()
			continue
		}
		if c.state.Load() != connActive {
			c.expireRead(now)
			continue
		}
		if c.overdue() {
			c.interrupt(expired)
		}
		if c.probe != nil && c.probe.gone() {
			c.interrupt(departed)
		}
	}
	clear(scratch)
	p.upstreams.sweep(now)
	return scratch
}
