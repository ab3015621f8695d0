package policy

import (
	"cmp"
	"slices"

	"grapevine.example/prefixtree"
)

// Shape is the tree of the prefixes that prompts of a pool share, as one node's work meter has counted them.
type Shape struct {
	Model    string  // "": requests without one; "*": models that no engine lists
	Labels   string  // of the pool's engines, as a rule names them; "": any
	Requests float64 // the pool's recent ones; of more than 2,048, older ones count half, and so on
	// Prefixes has each one behind the one above it; of two with the same one above, the more used one is first.
	Prefixes []SharedPrefix
}

// SharedPrefix is a prefix of prompts that go on from its end in different ways.
type SharedPrefix struct {
	Anchor   prefixtree.Hash
	Above    prefixtree.Hash // the longest other prefix in the list that it begins with; 0: none
	Held     prefixtree.Hash // its last block that nodes tell each other of: the tree knows which engines hold it
	Tokens   float64         // its length
	Requests float64         // of Shape.Requests, those that begin with it; counted since the meter has it, so a lower bound
	Left     int             // requests that went on from its end as no engine knew it
}

// shapeLeast: the turns of one conversation leave the end of each earlier prompt once.
const shapeLeast = 2

// Shapes returns the shapes of this node's busiest pools, with so many prefixes in all, of those that most requests begin with. A pool takes
// less than a millisecond, and holds up its requests while at most 1,024 places are copied. Safe for concurrent use.
func (r *Router) Shapes(pools, prefixes int) (list []Shape) {
	type counted struct {
		*pool
		meter metered
	}
	var busy []counted
	for _, p := range r.table.Load().pools {
		if m := p.work.counted(); p.named && len(m.places) > 0 {
			busy = append(busy, counted{p, m})
		}
	}
	slices.SortFunc(busy, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.meter.total, a.meter.total), cmp.Compare(a.key, b.key))
	})
	busy = busy[:min(len(busy), pools)]
	for _, p := range busy {
		perBlock := float64(r.cfg.BlockBytes) / p.texts.bytesPerToken()
		list = append(list, Shape{p.model, p.labels, p.meter.total, p.meter.shape(prefixes/len(busy), perBlock)})
	}
	return list
}

// metered is a copy of what a meter has counted.
type metered struct {
	total  float64
	places []meteredPlace
}

type meteredPlace struct {
	anchor, above, held prefixtree.Hash
	blocks              int
	seen                float64
	left                int
}

func (m *workMeter) counted() (c metered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.total = m.total
	for i := range m.places {
		for j := range m.places[i] {
			if p := &m.places[i][j]; m.anchors[i][j] != 0 {
				c.places = append(c.places, meteredPlace{m.anchors[i][j], p.above, p.held, int(p.blocks), p.seen, p.left})
			}
		}
	}
	return c
}

// shape orders the places of m, which it changes, into a tree.
func (m *metered) shape(most int, perBlock float64) (list []SharedPrefix) {
	slices.SortFunc(m.places, func(a, b meteredPlace) int {
		return cmp.Or(cmp.Compare(b.blocks, a.blocks), cmp.Compare(a.anchor, b.anchor))
	})
	at := make(map[prefixtree.Hash]int, len(m.places))
	for i := range m.places {
		at[m.places[i].anchor] = i
	}
	// A prefix that took its place late has missed requests that the longer ones have counted. Those of one length share none.
	below := make([]float64, len(m.places))
	for i := range m.places {
		p := &m.places[i]
		p.seen = max(p.seen, below[i])
		if above, ok := at[p.above]; ok && m.places[above].blocks < p.blocks {
			below[above] += p.seen
		} else {
			p.above = 0 // its place was taken
		}
	}
	used := make([]int, 0, len(m.places)) // those to show, the most used first
	for i := range m.places {
		if m.places[i].left >= shapeLeast {
			used = append(used, i)
		}
	}
	slices.SortStableFunc(used, func(a, b int) int {
		return cmp.Or(cmp.Compare(m.places[b].seen, m.places[a].seen), cmp.Compare(m.places[a].blocks, m.places[b].blocks))
	})
	used = used[:min(len(used), most)]
	shown := make(map[prefixtree.Hash]bool, len(used))
	for _, i := range used {
		shown[m.places[i].anchor] = true
	}
	under := make(map[prefixtree.Hash][]int, len(used))
	for _, i := range used {
		above := m.places[i].above
		for above != 0 && !shown[above] {
			above = m.places[at[above]].above
		}
		m.places[i].above = above
		under[above] = append(under[above], i)
	}
	var add func(above prefixtree.Hash)
	add = func(above prefixtree.Hash) {
		for _, i := range under[above] {
			p := &m.places[i]
			list = append(list, SharedPrefix{p.anchor, p.above, p.held, float64(p.blocks) * perBlock, min(p.seen, m.total), p.left})
			add(p.anchor)
		}
	}
	add(0)
	return list
}
