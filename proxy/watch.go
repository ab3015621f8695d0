package proxy

import "time"

// watch looks at every client connection once per period, so that no request pays for a timer of
// its own: it ends the waits whose time is up and the writes to clients that do not read. Clients
// that leave are reported by departures, at once.
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

// Sweeps counts the finished passes over the connections. While it does not rise, with a listener
// open, no deadline of a request is kept.
func (p *Proxy) Sweeps() uint64 { return p.sweeps.Load() }

// sweep makes one pass. It works on a copy of the list, so that interrupting a request does not
// hold up new connections.
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
			c.abort() // a FIN would leave what the client does not read in the kernel's buffers for minutes
			continue
		}
		if c.state.Load() != connActive {
			c.expireRead(now)
			continue
		}
		if c.overdue() {
			c.interrupt(expired)
		}
	}
	clear(scratch)
	p.upstreams.sweep(now)
	return scratch
}
