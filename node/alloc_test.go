//go:build !race

package node

import "testing"

// TestDecideDoesNotAllocate: from request bytes to chosen backend, once warm.
func TestDecideDoesNotAllocate(t *testing.T) {
	d := newDecider(t, 128<<10)
	d.decide(t)
	if n := testing.AllocsPerRun(100, func() { d.decide(t) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
