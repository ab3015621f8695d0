package ledger

import (
	"slices"

	"grapevine.example/prefixtree"
)

const mostPlaced = 1 << 12 // anchors; some seconds of an engine's traffic

// placed remembers the anchors that other nodes placed lately, in the order in which they were heard of.
type placed struct {
	ring []anchor
	at   map[prefixtree.Hash]int
	next int
}

type anchor struct {
	hash prefixtree.Hash
	at   prefixtree.Time // equal within a placement
	span int             // blocks since the anchor above
}

func (p *placed) add(a anchor) {
	if p.at == nil {
		p.at = make(map[prefixtree.Hash]int)
	}
	if len(p.ring) < mostPlaced {
		p.ring = append(p.ring, a)
		p.at[a.hash] = len(p.ring) - 1
		return
	}
	if old := p.ring[p.next].hash; p.at[old] == p.next {
		delete(p.at, old)
	}
	p.ring[p.next], p.at[a.hash] = a, p.next
	p.next = (p.next + 1) % mostPlaced
}

// run returns the anchors of the placement that ends with a block, deepest first.
func (p *placed) run(end prefixtree.Hash, yield func(anchor)) {
	i, ok := p.at[end]
	if !ok {
		return
	}
	for at := p.ring[i].at; p.ring[i].at == at; {
		yield(p.ring[i])
		if i--; i < 0 {
			i = len(p.ring) - 1
		}
		if i == p.at[end] || len(p.ring) == mostPlaced && i == p.next {
			return
		}
	}
}

// Placed notes an anchor that another node placed on the engine, so many blocks below the one before; a placement's come root
// first, with one time. The stamp of that node's request names the last of them.
func (l *Ledger) Placed(h prefixtree.Hash, span int, at prefixtree.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.placed.add(anchor{h, at, max(span, 1)})
	if t := l.trails.byBlock[h]; t != nil && l.follow(t) {
		delete(l.trails.byBlock, h)
		if t.from >= 0 {
			l.link(t)
		}
	}
}

// follow adds the anchors of another node's request to its trail. It returns false if they are not known yet.
func (l *Ledger) follow(t *trail) (found bool) {
	marks := len(t.places)
	bytes := t.places[marks-1].bytes / l.cfg.BlockBytes * l.cfg.BlockBytes
	l.placed.run(t.block, func(a anchor) {
		found = true
		if bytes > 0 {
			t.places = append(t.places, place{hash: a.hash, bytes: bytes, text: true})
		}
		bytes -= a.span * l.cfg.BlockBytes
	})
	l.trails.places += len(t.places) - marks
	slices.SortStableFunc(t.places, func(x, y place) int { // a mark at the end of a block comes behind it
		switch {
		case x.bytes != y.bytes:
			return x.bytes - y.bytes
		case x.text && !y.text:
			return -1
		case y.text && !x.text:
			return 1
		}
		return 0
	})
	return found
}
