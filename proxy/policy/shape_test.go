package policy

import (
	"math"
	"testing"

	"grapevine.example/prefixtree"
)

// Prompts share a system prompt; a third of them go on with one text, a third with another, and the rest by themselves.
func TestShapeIsTheTreeOfSharedPrefixes(t *testing.T) {
	const system, text, all, requests = 21, 40, 46, 600
	r, tree := newRouter(t, Config{}, fleetOf(8))
	root := prompt(7, 0, system, system)
	ask3 := func(i int) []prefixtree.Hash {
		hashes := prompt(uint64(100+i%3), uint64(i+1000), text, all)
		if i%3 == 2 {
			hashes = prompt(1, uint64(i+1000), 0, all)
		}
		copy(hashes, root)
		return hashes
	}
	now := t0
	for i := range requests {
		now += 100
		serve(t, r, ask(ask3(i)), now)
	}
	shapes := r.Shapes(4, 10)
	if len(shapes) != 1 || shapes[0].Requests != requests || shapes[0].Model != "" {
		t.Fatalf("%d shapes: %+v", len(shapes), shapes)
	}
	list := shapes[0].Prefixes
	if len(list) != 3 {
		t.Fatalf("%d prefixes: %+v", len(list), list)
	}
	perBlock := testBlock / r.table.Load().all.texts.bytesPerToken()
	for i, want := range []struct {
		anchor, above   prefixtree.Hash
		blocks, of      float64
		leastLeft, held int
	}{
		{root[system-1], 0, system, 1, requests / 3, 20}, {ask3(0)[text-1], root[system-1], text, 1. / 3, requests / 4, text}, {ask3(1)[text-1], root[system-1], text, 1. / 3, requests / 4, text},
	} {
		if i > 0 && list[1].Anchor == ask3(1)[text-1] {
			want.anchor = ask3(2 - i)[text-1]
		}
		p := list[i]
		if p.Anchor != want.anchor || p.Above != want.above || math.Abs(p.Tokens-want.blocks*perBlock) > 1 || math.Abs(p.Requests/requests-want.of) > 0.02 || p.Left < want.leastLeft {
			t.Errorf("prefix %d is %+v, want %+v", i, p, want)
		}
		var m prefixtree.Matches
		tree.Match(&m, []prefixtree.Hash{p.Held}, now)
		if len(m.Holders()) == 0 {
			t.Errorf("no engine holds prefix %d", i)
		}
	}
	if held := list[0].Held; held != root[19] {
		t.Errorf("block %x of the first one is known of all nodes, want the 20th: %x", held, root[19])
	}
	if shorter := r.Shapes(4, 1)[0].Prefixes; len(shorter) != 1 || shorter[0].Anchor != root[system-1] {
		t.Errorf("of one prefix: %+v", shorter)
	}
}

// The turns of conversations that share nothing are no tree.
func TestConversationsHaveNoShape(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	now := t0
	for turn := range 10 {
		for talk := range 20 {
			now += 100
			serve(t, r, ask(prompt(uint64(1000+talk), 0, 30+5*turn, 30+5*turn)), now)
		}
	}
	for _, s := range r.Shapes(4, 10) {
		if len(s.Prefixes) > 0 {
			t.Errorf("%+v", s)
		}
	}
}

func BenchmarkShapes(b *testing.B) {
	r, _ := newRouter(b, Config{}, fleetOf(64))
	now := t0
	for i := range uint64(4000) {
		now += 10
		serve(b, r, ask(prompt(i%400, i+5000, 4+int(i%60), 80)), now)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Shapes(4, 64)
	}
}
