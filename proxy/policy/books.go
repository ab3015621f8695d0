package policy

import (
	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// What the books say of the view's engines, by their numbers, and what others report to them. All of it is safe for concurrent use. Of an
// engine that is not in the view nothing is known, and reports of it are not taken, except those of other nodes, which may precede the view.

// engine returns the books on a backend; nil if the view has no such backend.
func (t *table) engine(b prefixtree.Backend) *books.Engine {
	if int(b) >= len(t.view.byID) || t.view.byID[b] < 0 {
		return nil
	}
	return t.engines[t.view.byID[b]]
}

// known returns a backend's books to read from, or empty ones if the view has no such backend. The caller must not write to them.
func (r *Router) known(b prefixtree.Backend) *books.Engine {
	if e := r.table.Load().engine(b); e != nil {
		return e
	}
	return new(books.Engine)
}

// Release forgets a backend outside the view, for reuse of its id. False: requests run there.
func (r *Router) Release(b prefixtree.Backend) bool { return r.books.Drop(b) }

// Load returns this node's outstanding prefill tokens and active requests.
func (r *Router) Load(b prefixtree.Backend) (prefillTokens, active int64) {
	e := r.known(b)
	return e.Charged(), e.Active()
}

// OwnLoads appends this node's outstanding work, without idle backends.
func (r *Router) OwnLoads(dst []books.PeerLoad, now prefixtree.Time) []books.PeerLoad {
	return r.books.OwnLoads(dst, r.table.Load().engines, now)
}

// PeerLoad returns what other nodes report as outstanding.
func (r *Router) PeerLoad(b prefixtree.Backend) (prefillTokens, active int64) {
	e := r.known(b)
	return max(e.PeerTokens(), 0), max(e.PeerActive(), 0)
}

// SetPeerLoad replaces the origin's report; unlisted backends are idle. Of duplicates the last counts.
func (r *Router) SetPeerLoad(origin string, loads []books.PeerLoad, now prefixtree.Time) {
	r.books.SetPeerLoad(origin, loads, r.View().capacity, now)
}

// UpdatePeerLoad replaces the origin's report for the listed backends only.
func (r *Router) UpdatePeerLoad(origin string, changed []books.PeerLoad, now prefixtree.Time) {
	r.books.UpdatePeerLoad(origin, changed, r.View().capacity, now)
}

func (v *View) capacity(b prefixtree.Backend) int {
	if e, ok := v.Backend(b); ok {
		return e.KVTokens
	}
	return 0
}

// DropPeer takes out what the origin reported.
func (r *Router) DropPeer(origin string) {
	r.books.DropPeer(origin)
}

// Rate returns a backend's prefill rate, else the fleet's, in tokens/s.
func (r *Router) Rate(b prefixtree.Backend) float64 {
	return r.known(b).RateOr(r.books.FleetRate())
}

// RateReported reports whether the backend's rate is what its engine reports of itself, not what requests
// show.
func (r *Router) RateReported(b prefixtree.Backend, now prefixtree.Time) bool {
	return r.known(b).ReportsRate(now)
}

// OwnRate returns the rate measured by this node, in tokens/s, and its weight in seconds of
// prefill.
func (r *Router) OwnRate(b prefixtree.Backend) (tokensPerSecond, weight float64) {
	return r.known(b).OwnRate()
}

// SetPeerRate replaces the other nodes' mean rate and total weight; 0 removes it.
func (r *Router) SetPeerRate(b prefixtree.Backend, tokensPerSecond, weight float64) {
	r.books.SetPeerRate(b, tokensPerSecond, weight)
}

// SetTelemetry takes an engine's report.
func (r *Router) SetTelemetry(b prefixtree.Backend, t books.Telemetry) {
	if e := r.table.Load().engine(b); e != nil {
		r.books.SetTelemetry(e, t)
	}
}

// SetAdapters takes an engine's report of its LoRA adapters: how many a batch may use (0: none, or unknown), and those that its
// requests use or wait for.
func (r *Router) SetAdapters(b prefixtree.Backend, slots int, inUse []string, now prefixtree.Time) {
	e := r.table.Load().engine(b)
	if e == nil {
		return
	}
	names := make([]uint64, len(inUse))
	for i, name := range inUse {
		names[i] = xxh3.HashString(name)
	}
	e.SetAdapters(slots, names, now)
}

// Health returns the failure state of a backend at this node.
func (r *Router) Health(b prefixtree.Backend) books.Health { return r.known(b).Health() }

// Avoided reports whether new requests avoid a backend, and until when.
func (r *Router) Avoided(b prefixtree.Backend, now prefixtree.Time) (until prefixtree.Time, avoid bool) {
	return r.known(b).Avoided(now)
}

// Lives ends an ejection after a probe sent at asked: if it began before, if the back-off is over
// when it is not the first, and if it was not for 5xx, since such a backend may answer probes.
func (r *Router) Lives(b prefixtree.Backend, asked, now prefixtree.Time) {
	r.known(b).Lives(asked)
}
