package gossip

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grapevine/chaos/virtual"
)

// meshSize is 100 nodes mostly, and now and then so many that only volume shows what they do. The first seed is of a few: it is the
// one that runs under the race detector, which makes a hundred nodes 25 times as dear and finds nothing on their one goroutine.
func meshSize(seed uint64) int {
	switch {
	case seed%50 == 0:
		return 1000
	case seed%10 == 0:
		return 300
	case seed%10 == 1:
		return 30
	}
	return 100
}

// TestSeedsMesh: what hundreds of nodes believe is true, their counters add up, and they agree soon after the last fault.
func TestSeedsMesh(t *testing.T) {
	t.Parallel()
	virtual.Seeds(t, 1, 50, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			t.Log(newMesh(t, seed, meshSize(seed)).run(30*time.Second, 3))
		})
	})
}

// A mesh has no clock, goroutine or randomness but the seed's: where facts commute, all that nodes believe at the end is the same
// in each run.
func TestMeshRepeats(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (said string) {
		synctest.Test(t, func(t *testing.T) { said = newMesh(t, seed, 12).run(20*time.Second, 3) })
		return said
	}
	first := run(1)
	if !strings.Contains(first, "skewed false, exact true") {
		t.Fatalf("not a seed whose facts commute: %s", first)
	}
	if again := run(1); again != first {
		t.Errorf("one seed, two runs:\n%s\n%s", first, again)
	}
	if run(2) == first {
		t.Error("the seed changes nothing")
	}
}
