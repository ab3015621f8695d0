package policy

import (
	"strings"
	"unique"

	"grapevine.example/prefixtree"
)

// zoneLabel names the label that says where a backend is.
const zoneLabel = "zone="

// zone is where a node or backend is. Handles compare faster than names.
type zone = unique.Handle[string]

// anyZone is not known, so near to all.
var anyZone = unique.Make("")

func (b *Backend) zone() zone {
	for _, l := range b.Labels {
		if name, found := strings.CutPrefix(l, zoneLabel); found {
			return unique.Make(name)
		}
	}
	return anyZone
}

func (t *table) zoneOf(b prefixtree.Backend) zone {
	if e, known := t.view.Backend(b); known {
		return e.zone()
	}
	return anyZone
}

// way returns the price of the way to a candidate in another zone; 0 in the same one, and where one of both is unknown.
func (s *Scene) way(c *Candidate) float64 {
	if c.zone == s.zone || c.zone == anyZone || s.zone == anyZone {
		return 0
	}
	return s.zoneCost
}
