package node

import "grapevine/prefixtree"

// backendNames translates between backend ids and the keys of the backends'
// names, by which all nodes know them. Immutable, safe for concurrent use.
type backendNames struct {
	keys  []uint32 // by id
	has   []bool   // by id
	ids   map[uint32]prefixtree.Backend
	clash [][2]string // names that have one key; nothing is told of the second of each
}

func newBackendNames(ups []*upstream) *backendNames {
	top := 0
	for _, u := range ups {
		top = max(top, int(u.id)+1)
	}
	n := &backendNames{keys: make([]uint32, top), has: make([]bool, top), ids: make(map[uint32]prefixtree.Backend, len(ups))}
	owner := make(map[uint32]string, len(ups))
	for _, u := range ups {
		key := prefixtree.BackendKey(u.Name)
		if first, taken := owner[key]; taken {
			n.clash = append(n.clash, [2]string{first, u.Name})
			continue
		}
		owner[key] = u.Name
		n.keys[u.id], n.has[u.id], n.ids[key] = key, true, u.id
	}
	return n
}

// Key implements prefixtree.Names.
func (n *backendNames) Key(b prefixtree.Backend) (key uint32, ok bool) {
	if int(b) >= len(n.keys) || !n.has[b] {
		return 0, false
	}
	return n.keys[b], true
}

// Backend implements prefixtree.Names.
func (n *backendNames) Backend(key uint32) (b prefixtree.Backend, ok bool) {
	b, ok = n.ids[key]
	return b, ok
}
