//go:build !race

package node

import (
	"testing"

	"grapevine.example/prefixtree"
)

// TestDecideDoesNotAllocate counts all allocations of many requests: a mean would round down to 0.
func TestDecideDoesNotAllocate(t *testing.T) {
	const requests, few = 2000, 500 // garbage collection empties pools, and other tests may still run
	d := newDecider(t, 128<<10)
	same := func() {
		for range requests {
			d.decide(t)
		}
	}
	if n := testing.AllocsPerRun(1, same); n > few { // AllocsPerRun runs it once before
		t.Errorf("%v allocations in %d requests", n, requests)
	}
	own := uint64(0)
	apart := func() {
		for range requests {
			for i := range d.request.Hashes[40:] {
				own += 0x9e3779b97f4a7c15
				d.request.Hashes[40+i] = prefixtree.Hash(own)
			}
			d.now++
			d.pick(t)
		}
	}
	if n := testing.AllocsPerRun(1, apart); n > few {
		t.Errorf("%v allocations in %d requests of different prompts", n, requests)
	}
}
