package proxy

import (
	"maps"
	"slices"
	"time"
)

// watch checks all client connections every Timeouts.Watch, so that requests need no timers.
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

// Sweeps returns the number of finished passes. While a listener is open and Sweeps stands still,
// no request deadline is enforced.
func (p *Proxy) Sweeps() uint64 { return p.sweeps.Load() }

// sweep works on a copy of the list, so that interrupting requests does not block new connections.
func (p *Proxy) sweep(scratch []*clientConn) []*clientConn {
	now := int64(time.Since(p.epoch))
	p.clock.Store(now)
	p.mu.Lock()
	scratch = slices.AppendSeq(scratch, maps.Keys(p.conns))
	p.mu.Unlock()
	stall := int64(p.tuned.Load().Timeouts.Write)
	for _, c := range scratch {
		if since := c.writing.Load(); since != 0 && now-since > stall {
			c.interrupt(stalled)
			c.abort() // a FIN would keep unread data in the kernel's buffers for minutes
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
	p.upstreams.closeUnused(now - int64(p.tuned.Load().Timeouts.UpstreamIdle))
	return scratch
}
