//go:build !race

package node

import (
	"testing"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
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

// TestAnnouncingDoesNotAllocate: publishing a request's changes allocates nothing once warm.
func TestAnnouncingDoesNotAllocate(t *testing.T) {
	k := newKnower(t, "a", "b", "c", "d")
	prompts := make([][]prefixtree.Hash, 4)
	for i := range prompts {
		prompts[i] = chain(i, 64)
	}
	var a policy.Attempt
	payload := make([]byte, 0, 64<<10)
	posted := 0
	request := func(prompt int) {
		k.serve(t, &a, prompts[prompt%len(prompts)], 0)
		// Beyond the resolution of times, so that the next request changes the tree again.
		k.at += prefixtree.Time(30 * time.Second / time.Millisecond)
		_, n := k.Drain(payload[:0], cap(payload))
		posted += n
	}
	for i := range 10 * len(prompts) {
		request(i)
	}
	before, i := posted, 0
	if n := testing.AllocsPerRun(100, func() { request(i); i++ }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if posted == before {
		t.Error("nothing was posted: the test shows nothing")
	}
}
