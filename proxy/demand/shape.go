package demand

import (
	"cmp"
	"slices"

	"grapevine.example/prefixtree"
)

// SharedPrefix is a prefix of prompts that go on from its end in different ways.
type SharedPrefix struct {
	Anchor   prefixtree.Hash
	Above    prefixtree.Hash // the longest other prefix in the list that it begins with; 0: none
	Held     prefixtree.Hash // its last block that nodes tell each other of: the tree knows which engines hold it
	Tokens   float64         // its length
	Requests float64         // those that begin with it; counted since it took its place, so a lower bound
	Left     int             // requests that went on from its end as no engine knew it
}

// shapeLeast: the turns of one conversation leave the end of each earlier prompt once.
const shapeLeast = 2

// Tree is a copy of what has been counted.
type Tree struct {
	Requests float64 // the pool's recent ones; of more than 2,048, older ones count half, and so on
	places   []counted
}

type counted struct {
	anchor prefixtree.Hash
	place
}

// Tree returns nil before a prefix has a place. It holds up requests while at most 1,024 places are copied.
func (m *Prefixes) Tree() *Tree {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tags == nil {
		return nil
	}
	t := &Tree{Requests: m.total}
	for i, anchor := range m.anchors {
		if anchor != 0 {
			t.places = append(t.places, counted{anchor, m.places[i]})
		}
	}
	return t
}

// Shape returns at most so many prefixes, those that most requests begin with: each behind the one above it and, of two with the
// same one above, the more used one first. It changes the copy.
func (t *Tree) Shape(most int, tokensPerBlock float64) (list []SharedPrefix) {
	slices.SortFunc(t.places, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.blocks, a.blocks), cmp.Compare(a.anchor, b.anchor))
	})
	at := make(map[prefixtree.Hash]int, len(t.places))
	for i := range t.places {
		at[t.places[i].anchor] = i
	}
	// A prefix that took its place late has missed requests that the longer ones have counted. Those of one length share none.
	below := make([]float64, len(t.places))
	for i := range t.places {
		p := &t.places[i]
		p.seen = max(p.seen, below[i])
		if above, ok := at[p.above]; ok && t.places[above].blocks < p.blocks {
			below[above] += p.seen
		} else {
			p.above = 0 // its place was taken
		}
	}
	used := make([]int, 0, len(t.places)) // those to show, the most used first
	for i := range t.places {
		if t.places[i].left >= shapeLeast {
			used = append(used, i)
		}
	}
	slices.SortStableFunc(used, func(a, b int) int {
		return cmp.Or(cmp.Compare(t.places[b].seen, t.places[a].seen), cmp.Compare(t.places[a].blocks, t.places[b].blocks))
	})
	used = used[:min(len(used), most)]
	shown := make(map[prefixtree.Hash]bool, len(used))
	for _, i := range used {
		shown[t.places[i].anchor] = true
	}
	under := make(map[prefixtree.Hash][]int, len(used))
	for _, i := range used {
		above := t.places[i].above
		for above != 0 && !shown[above] {
			above = t.places[at[above]].above
		}
		t.places[i].above = above
		under[above] = append(under[above], i)
	}
	var add func(above prefixtree.Hash)
	add = func(above prefixtree.Hash) {
		for _, i := range under[above] {
			p := &t.places[i]
			list = append(list, SharedPrefix{p.anchor, p.above, p.held, float64(p.blocks) * tokensPerBlock, min(p.seen, t.Requests), p.left})
			add(p.anchor)
		}
	}
	add(0)
	return list
}
