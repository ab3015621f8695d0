package books

import (
	"sync/atomic"

	"grapevine.example/prefixtree"
)

// growth is this node's load at an engine at the last two moments that are a staleness apart, and the most
// active requests that the other nodes had there since each. Other nodes know this node's load at the earlier
// moment, or a later one.
type growth struct {
	since   atomic.Int64 // ms
	active  [2]atomic.Int64
	charged [2]atomic.Int64
	peak    [2]atomic.Int64
}

// of returns by how much the load has grown since the other nodes last heard of it, at least 0, and the most
// requests that they had meanwhile: a node refills what it has freed before the others use it. Writers race
// for moments only; each stores what it has read.
func (g *growth) of(active, charged, others, staleness int64, now prefixtree.Time) (requests, tokens, peak int64) {
	if since := g.since.Load(); int64(now)-since >= staleness && g.since.CompareAndSwap(since, int64(now)) {
		g.active[0].Store(g.active[1].Load())
		g.charged[0].Store(g.charged[1].Load())
		g.peak[0].Store(g.peak[1].Load())
		if int64(now)-since >= 2*staleness {
			g.active[0].Store(active)
			g.charged[0].Store(charged)
			g.peak[0].Store(others)
		}
		g.active[1].Store(active)
		g.charged[1].Store(charged)
		g.peak[1].Store(others)
	}
	if others > g.peak[1].Load() {
		g.peak[1].Store(others)
	}
	return max(active-g.active[0].Load(), 0), max(charged-g.charged[0].Load(), 0), max(g.peak[0].Load(), g.peak[1].Load())
}

// Grown returns by how many requests and prefill tokens this router's load has grown since the other routers, who hear of it with so many
// ms of staleness, last heard of it, and the most requests that they had here meanwhile.
func (e *Engine) Grown(staleness int64, now prefixtree.Time) (requests, tokens, peak int64) {
	return e.growth.of(e.active.Load(), e.charged.Load(), e.peerActive.Load(), staleness, now)
}
