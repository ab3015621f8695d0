package node

import "grapevine/prefixtree"

// backendNames translates between this node's backend ids, which are positions
// in its list, and the keys of their names, by which all nodes know them.
// Immutable, safe for concurrent use.
type backendNames struct {
	keys []uint32 // by id
	ids  map[uint32]prefixtree.Backend
}

// newBackendNames takes a validated list: no two names have the same key.
func newBackendNames(backends []Backend) *backendNames {
	n := &backendNames{keys: make([]uint32, len(backends)), ids: make(map[uint32]prefixtree.Backend, len(backends))}
	for id := range backends {
		key := prefixtree.BackendKey(backends[id].Name)
		n.keys[id] = key
		n.ids[key] = prefixtree.Backend(id)
	}
	return n
}

// Key implements prefixtree.Names.
func (n *backendNames) Key(b prefixtree.Backend) (key uint32, ok bool) {
	if int(b) >= len(n.keys) {
		return 0, false
	}
	return n.keys[b], true
}

// Backend implements prefixtree.Names.
func (n *backendNames) Backend(key uint32) (b prefixtree.Backend, ok bool) {
	b, ok = n.ids[key]
	return b, ok
}
