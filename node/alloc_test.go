//go:build !race

package node

import (
	"testing"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// TestDecideDoesNotAllocate: from request bytes to chosen backend, once warm.
func TestDecideDoesNotAllocate(t *testing.T) {
	d := newDecider(t, 128<<10)
	for range 400 { // until all of the prompt is common property
		d.decide(t)
	}
	if n := testing.AllocsPerRun(100, func() { d.decide(t) }); n != 0 {
		t.Errorf("%v allocations", n)
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
