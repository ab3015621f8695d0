//go:build !race

package share

import (
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

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
