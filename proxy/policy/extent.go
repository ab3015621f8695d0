package policy

import "grapevine/prefixtree"

// extent learns how far prompts continue alike behind an anchor, by comparing each with the one
// before. The heavy hitters alone need minutes for a long prefix.
type extent struct {
	known  bool
	before [maxExtent]prefixtree.Hash // anchors of the latest prompt behind this one
	length int
	depths [maxExtent + 1]uint8 // prompts by number of anchors shared with the one before
	seen   int                  // sum of depths; halved at extentSeen
	turn   uint8
	until  int // block up to which most continue alike, and its hash; 0: none
	end    prefixtree.Hash
}

const (
	maxExtent               = anchorDense + (anchorDepth-anchorDense)/anchorStride
	extentSeen, extentLeast = 64, 3 // prompts in depths, and the least that give a result
	extentEvery             = 8     // from half of extentSeen on, one in extentEvery is compared
	alike                   = 0.7   // the share of prompts that must continue alike
)

// add returns up to which block prompts continue alike, at least blocks.
func (f *extent) add(hashes []prefixtree.Hash, blocks int) int {
	if f.turn++; f.seen < extentSeen/2 || f.turn%extentEvery == 0 {
		f.compare(hashes, blocks)
	}
	if f.until > blocks && f.until <= len(hashes) && hashes[f.until-1] == f.end {
		return f.until
	}
	return blocks
}

func (f *extent) compare(hashes []prefixtree.Hash, blocks int) {
	last := min(len(hashes), anchorDepth) - 1
	n, depth, same := 0, 0, f.known
	for i := blocks - 1; i < last; n++ {
		i = nextAnchor(i, last)
		if same = same && n < f.length && f.before[n] == hashes[i]; same {
			depth = n + 1
		}
		f.before[n] = hashes[i]
	}
	f.length = n
	if !f.known {
		f.known = true
		return
	}
	f.depths[min(depth, maxExtent)]++
	if f.seen++; f.seen >= extentSeen {
		f.seen = 0
		for i := range f.depths {
			f.depths[i] /= 2
			f.seen += int(f.depths[i])
		}
	}
	if f.seen < extentLeast {
		return
	}
	common, from := 0, maxExtent
	for ; from > 0; from-- {
		if common += int(f.depths[from]); float64(common) >= alike*float64(f.seen) {
			break
		}
	}
	switch {
	case from == 0:
		f.until = 0
	case depth >= from:
		at := blocks - 1
		for range from {
			at = nextAnchor(at, last)
		}
		f.until, f.end = at+1, hashes[at]
	}
}

const maxBeginnings = 64 // bounds the anchors compared per pool

type beginnings struct {
	index map[prefixtree.Hash]*beginning
	list  []beginning
	hand  int
}

type beginning struct {
	anchor prefixtree.Hash
	again  bool // used since the hand passed
	extent
}

func (b *beginnings) behind(anchor prefixtree.Hash) *extent {
	if e := b.index[anchor]; e != nil {
		e.again = true
		return &e.extent
	}
	if b.index == nil {
		b.index, b.list = make(map[prefixtree.Hash]*beginning, maxBeginnings), make([]beginning, maxBeginnings)
	}
	for b.list[b.hand].again {
		b.list[b.hand].again = false
		b.hand = (b.hand + 1) % maxBeginnings
	}
	e := &b.list[b.hand]
	b.hand = (b.hand + 1) % maxBeginnings
	if b.index[e.anchor] == e {
		delete(b.index, e.anchor)
	}
	e.anchor, e.extent = anchor, extent{}
	b.index[anchor] = e
	return &e.extent
}
