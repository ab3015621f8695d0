//go:build !race

package node

import (
	"testing"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// TestDecideDoesNotAllocate: from request bytes to chosen backend, once warm, for the same prompt again and again and for prompts that go apart.
// All allocations of many requests are counted, as a mean would be rounded down to none.
func TestDecideDoesNotAllocate(t *testing.T) {
	const requests, few = 2000, 500 // the collector empties pools now and then, and what other tests left behind may run
	d := newDecider(t, 128<<10)
	same := func() {
		for range requests {
			d.decide(t)
		}
	}
	if n := testing.AllocsPerRun(1, same); n > few { // it runs once before
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

// TestAnnouncingDoesNotAllocate: a request of a node in a fleet costs no
// memory either, from its choice to its end, once the buffers have grown.
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
		// Later than the grain of times, so that the next one is news again.
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
