package policy

import (
	"strings"

	"grapevine.example/prefixtree"
)

// zoneLabel names the label that says where a backend is.
const zoneLabel = "zone="

// Numbers of zones; others count from 2.
const (
	anyZone = 0 // not known, so near to all
	ownZone = 1 // the node's, if it has one
)

// zonesOf numbers the node's zone and those of a view's backends.
func zonesOf(v *View, home string) (own int32, zones []int32) {
	numbers := map[string]int32{"": anyZone}
	if home != "" {
		numbers[home] = ownZone
	}
	zones = make([]int32, len(v.Backends))
	for i := range v.Backends {
		zone := v.Backends[i].zone()
		n, known := numbers[zone]
		if !known {
			n = int32(len(numbers) + 1)
			numbers[zone] = n
		}
		zones[i] = n
	}
	return numbers[home], zones
}

func (b *Backend) zone() string {
	for _, l := range b.Labels {
		if zone, found := strings.CutPrefix(l, zoneLabel); found {
			return zone
		}
	}
	return ""
}

// zoneOf returns the number of a backend's zone.
func (t *table) zoneOf(b prefixtree.Backend) int32 {
	if int(b) >= len(t.view.byID) || t.view.byID[b] < 0 {
		return anyZone
	}
	return t.zones[t.view.byID[b]]
}

// way returns the price of the way to a candidate in another zone; 0 in the same one, and where one of both is unknown.
func (s *Scene) way(c *Candidate) float64 {
	if c.zone == s.zone || c.zone == anyZone || s.zone == anyZone {
		return 0
	}
	return s.zoneCost
}
