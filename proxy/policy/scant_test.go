package policy

import (
	"testing"

	"grapevine.example/prefixtree"
)

// An engine with few, slow samples gets work again; one that proved slow gets little.
func TestScantEvidenceIsNotForEver(t *testing.T) {
	const blocks, tokens = 24, 24 * 128
	share := func(slow float64, nodes int) (got, all int) {
		r, _ := newRouter(t, Config{}, fleetOf(4))
		if nodes > 1 {
			r.SetFleet(nodes, 0)
			r.SetPeerLoad("north", nil, t0)
		}
		now, next := t0, uint64(0)
		send := func(not ...prefixtree.Backend) prefixtree.Backend {
			next++
			q := ask(prompt(next, 0, 99, blocks))
			q.Exclude = not
			a := pick(t, r, q, now)
			at := a.Decision().Backend
			a.Dispatched(now)
			took := 25.0 // ms, 15 of them prefill
			if at == 3 {
				took *= slow
			}
			a.FirstToken(now + prefixtree.Time(took))
			a.End(Outcome{PromptTokens: tokens, CachedTokens: 0, OutputTokens: 9}, now+prefixtree.Time(took)+20)
			now += 500
			return at
		}
		for range 2 {
			send(0, 1, 2)
		}
		for range 60 {
			send(3)
		}
		for range 400 {
			if all++; send() == 3 {
				got++
			}
		}
		return got, all
	}
	for _, nodes := range []int{1, 3} {
		if got, all := share(1, nodes); got < all/20 {
			t.Errorf("%d nodes: %d of %d prompts at an engine that is as fast as the others", nodes, got, all)
		}
		if got, all := share(20, nodes); got > all/5 {
			t.Errorf("%d nodes: %d of %d prompts at an engine that is 20 times as slow", nodes, got, all)
		}
	}
}

// The first engine to be measured does not attract all prompts.
func TestFirstMeasuredDrawsNotAll(t *testing.T) {
	const prompts, blocks, tokens = 64, 24, 24 * 128
	r, _ := newRouter(t, Config{}, fleetOf(4))
	now, used := t0, map[prefixtree.Backend]int{}
	for i := range uint64(prompts) {
		a := pick(t, r, ask(prompt(i+1, 0, 99, blocks)), now)
		used[a.Decision().Backend]++
		a.Dispatched(now)
		a.FirstToken(now + 15)
		a.End(Outcome{PromptTokens: tokens, CachedTokens: 0, OutputTokens: 9}, now+40)
		now += 500
	}
	for b, n := range used {
		if n > prompts/2 {
			t.Errorf("%d of %d prompts at backend %d: %v", n, prompts, b, used)
		}
	}
}
