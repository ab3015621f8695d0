package prefixtree

import (
	"testing"
	"time"
)

func TestEvicted(t *testing.T) {
	var news []Fact
	tree := newTree(t, Config{Budget: 16 << 20, Horizon: time.Minute, Changed: func(f []Fact) { news = append(news, f...) }})
	other := newTree(t, Config{Budget: 16 << 20, Horizon: time.Minute})
	chain := chainOf(t, 1, 8)
	held := func(tr *Tree) int {
		var m Matches
		tr.Match(&m, chain, start+5000)
		if len(m.Holders()) == 0 {
			return 0
		}
		return int(m.Holders()[0].Blocks)
	}
	tell := func() {
		for _, f := range news {
			other.Apply(f)
		}
		news = news[:0]
	}
	var tr TouchHistory
	tree.Record(1, chain, start, &tr)
	tell()
	tree.Record(1, chain[:2], start+4000, &tr)
	tell()
	if n := tree.Evicted(1, chain, start+3000, start+5000); n != 6 {
		t.Errorf("%d removed, want 6: two were touched since", n)
	}
	tell()
	if held(tree) != 2 {
		t.Errorf("%d blocks believed here, want 2", held(tree))
	}
	var m Matches
	other.Match(&m, chain, start+5000)
	if len(m.Holders()) != 1 || m.Holders()[0].Blocks != 2 {
		t.Errorf("peers believe %+v, want 2 blocks", m.Holders())
	}
	tree.Record(1, chain, start+6000, &tr)
	news = news[:0]
	old := start + Time((4 * time.Minute).Milliseconds())
	if n := tree.Evicted(1, chain, old, old); n != 0 || len(news) != 0 {
		t.Errorf("%d facts past their retention removed, want none", n)
	}
	if n := tree.Evicted(60000, chain, old, old); n != 0 {
		t.Errorf("%d facts of an unknown backend removed", n)
	}
}

func TestPlacedHearsWhatOthersAdd(t *testing.T) {
	var payload []byte
	box := NewOutbox(0)
	from := newTree(t, Config{Budget: 16 << 20, Changed: box.Add})
	chain := chainOf(t, 1, 24)
	var tr TouchHistory
	from.Record(1, chain, start, &tr)
	payload, _ = box.Drain(nil, MaxPayload, oneToOne{})
	blocks, last := 0, Hash(0)
	to := newTree(t, Config{Budget: 16 << 20, Placed: func(b Backend, anchor Hash, span int, at Time) {
		if b != 1 || at != start {
			t.Errorf("backend %d at %d", b, at)
		}
		blocks += span
		last = anchor
		if chain[blocks-1] != anchor {
			t.Errorf("block %d is not the anchor", blocks)
		}
	}})
	if _, err := to.ApplyDelta(payload, oneToOne{}, 0, start); err != nil {
		t.Fatal(err)
	}
	if blocks != len(chain) || last != chain[len(chain)-1] {
		t.Errorf("heard of %d blocks, want all %d", blocks, len(chain))
	}
}
