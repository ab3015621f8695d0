package policy

import (
	"cmp"
	"math"
	"slices"
)

// order finds the first backends for a key without ranking all. Backends occupy places in a larger
// table, which a key visits in a random sequence; removing one moves only those it displaced.
// Immutable.
type order struct {
	places []int32  // entry of the pool, -1: none; the length is a power of two
	accept []uint32 // by entry: probability in 2^-32 to be taken; nil if weights are equal
}

const (
	orderRoom                = 4      // places per backend: few are displaced
	orderProbes, orderWanted = 64, 16 // per wanted backend; with three of four gone, about 30 are needed
)

type orderKey struct {
	at    uint64
	entry int32 // -1: inactive; it keeps its place
}

// newOrder places backends by hash, each at the next free place.
func newOrder(keys []orderKey, entries []entry, weighted bool) *order {
	bits := 0
	for 1<<bits < orderRoom*len(keys) {
		bits++
	}
	o := &order{places: make([]int32, 1<<bits)}
	for i := range o.places {
		o.places[i] = -1
	}
	slices.SortFunc(keys, func(a, b orderKey) int { return cmp.Compare(a.at, b.at) })
	next := 0
	taken := make([]bool, len(o.places)) // includes inactive ones
	for _, k := range keys {
		at := max(int(k.at>>(64-bits)), next)
		if at >= len(o.places) {
			for at = 0; taken[at]; at++ {
			}
		} else {
			next = at + 1
		}
		o.places[at], taken[at] = k.entry, true
	}
	if weighted {
		o.accept = acceptance(entries)
	}
	return o
}

func acceptance(entries []entry) []uint32 {
	heaviest := 0.0
	for i := range entries {
		heaviest = max(heaviest, entries[i].weight)
	}
	scale := math.Exp2(math.Ceil(math.Log2(heaviest)))
	list := make([]uint32, len(entries))
	for i := range entries {
		list[i] = uint32(min(entries[i].weight/scale*(1<<32), math.MaxUint32))
	}
	return list
}

type walk struct {
	order *order
	key   uint64
	step  uint64
	left  int
}

func (o *order) begin(key uint64, want int) walk {
	return walk{order: o, key: mix(key), left: orderProbes * max(want, orderWanted)}
}

// next may repeat an entry; false ends the walk.
func (w *walk) next() (int, bool) {
	o := w.order
	mask := uint64(len(o.places) - 1)
	for ; w.left > 0; w.left-- {
		w.step += 0x9e3779b97f4a7c15
		h := mix(w.key + w.step)
		e := o.places[h&mask]
		if e >= 0 && (o.accept == nil || uint32(h>>32) < o.accept[e]) {
			w.left--
			return int(e), true
		}
	}
	return 0, false
}
