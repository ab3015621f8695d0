package ledger

import (
	"maps"
	"math/rand/v2"
	"testing"
)

type number uint64

func (n number) key() uint64 { return uint64(n) }

// TestIndex compares an index with a map while entries come and go, up to the share of the words that may be taken.
func TestIndex(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const most = 3000
	x := index{seed: rng.Uint64()}
	x.enlarge(most, maps.All(map[uint64]uint32{}))
	table := make([]number, most)
	want := make(map[uint64]uint32)
	var unused []uint32
	for id := range uint32(most) {
		unused = append(unused, id)
	}
	for range 100_000 {
		h := rng.Uint64N(2 * most)
		id, s, found := seek(&x, table, h)
		if wanted, known := want[h]; found != known || id != wanted {
			t.Fatalf("hash %d: entry %d, found %t; want %d, %t", h, id, found, wanted, known)
		}
		switch {
		case found:
			x.remove(h, id)
			unused = append(unused, id)
			delete(want, h)
		case len(unused) > 0:
			id = unused[len(unused)-1]
			unused = unused[:len(unused)-1]
			table[id], want[h] = number(h), id
			if !x.put(s, id) {
				t.Fatalf("no room for %d entries of %d", len(want), most)
			}
		}
	}
	taken := 0
	for _, w := range x.words {
		if w != 0 {
			taken++
		}
	}
	if taken != len(want) || !x.fits(most) {
		t.Errorf("%d words are taken by %d entries", taken, len(want))
	}
	x.enlarge(2*most, maps.All(want))
	for h, id := range want {
		if got, _, found := seek(&x, table, h); !found || got != id {
			t.Errorf("after enlarging hash %d: entry %d, found %t; want %d", h, got, found, id)
		}
	}
}

// A word has no room for a distance beyond its bits. The index then refuses an entry, and finds all that it took.
func TestIndexRefusesFarEntries(t *testing.T) {
	var x index
	x.enlarge(1000, maps.All(map[uint64]uint32{}))
	home := x.search(1).at
	var table []number
	refused := 0
	for h := uint64(1); len(table)+refused < 300; h++ {
		if at := x.search(h).at; at < home-1 || at > home+1 {
			continue
		}
		_, s, _ := seek(&x, table, h)
		if x.put(s, uint32(len(table))) {
			table = append(table, number(h))
		} else {
			refused++
		}
		for id, h := range table {
			if got, _, found := seek(&x, table, uint64(h)); !found || got != uint32(id) {
				t.Fatalf("with %d entries: hash %d is entry %d, found %t; want %d", len(table), h, got, found, id)
			}
		}
	}
	if len(table) < 100 || refused == 0 {
		t.Errorf("%d entries taken, %d refused; want some refused", len(table), refused)
	}
	for id, h := range table {
		x.remove(uint64(h), uint32(id))
	}
	for at, w := range x.words {
		if w != 0 {
			t.Fatalf("word %d is %#x after all entries were removed", at, w)
		}
	}
}
