package policy

import "grapevine/prefixtree"

// PeerLoad returns what other nodes report as outstanding on a backend of the present view.
func (r *Router) PeerLoad(b prefixtree.Backend) (prefillTokens, active int64) {
	if s := r.table.Load().slot(b); s != nil {
		return max(s.peerTokens.Load(), 0), max(s.peerActive.Load(), 0)
	}
	return 0, 0
}
