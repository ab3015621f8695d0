package policy

import (
	"cmp"
	"math"
	"slices"
)

// order finds the first backends in the order of a key without ranking all of them. Every backend has a place of its own in a table
// several times as large; a key visits the places in a random sequence, and its order is that in which it meets the backends. Each
// comes first for its share of the keys, and one that goes leaves the order of the others as it is, but for
// the few whose place it had taken. All nodes that know the same backends have the same table. Immutable.
type order struct {
	places []int32  // entry of the pool, -1 for none; a power of two of them
	accept []uint32 // by entry: the chance to be taken when met, in 2^-32; nil if all weigh the same
}

const (
	// orderRoom is the least number of places for each backend: few are then displaced when one comes or goes.
	orderRoom = 4
	// orderProbes bounds the places visited for each backend wanted, of at least orderWanted: with three of four backends away it takes
	// about thirty.
	orderProbes, orderWanted = 64, 16
)

// orderKey is a backend and where it would like to stand.
type orderKey struct {
	at    uint64
	entry int32 // -1 for a backend that is not active: it keeps its place
}

// newOrder lays out the table. Who wants a place that is taken gets the next free one, in order of what they want, so that the layout does
// not depend on the order of the list.
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
	taken := make([]bool, len(o.places)) // by inactive ones, too
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

// acceptance makes the heaviest backend be taken at least every other time it is met: the scale is a power of two, which hardly ever moves.
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

// walk goes through the order of one key.
type walk struct {
	order *order
	key   uint64
	step  uint64
	left  int // places to visit
}

// begin returns a walk that finds so many backends, unless most are away or light.
func (o *order) begin(key uint64, want int) walk {
	return walk{order: o, key: mix(key), left: orderProbes * max(want, orderWanted)}
}

// next returns the next entry; false at the end of the walk. One may come again.
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
