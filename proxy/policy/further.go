package policy

import "grapevine/prefixtree"

// further finds out quickly how far prompts go on alike behind an anchor: by how far each does as the one before it. The sketch finds the
// anchors of a long prefix one after the other, each when the one before has been seen often enough, which takes minutes.
type further struct {
	known  bool                        // there was one
	before [maxFurther]prefixtree.Hash // anchors of the latest prompt, behind the one that this is about
	length int                         // how many
	depths [maxFurther + 1]uint8       // how many prompts had so many anchors in common with the one before
	seen   int                         // their number; all are halved when it is furtherSeen
	turn   uint8                       // of prompts, compared or not
	until  int                         // the block up to which most go on alike, and its hash; 0: they do not
	end    prefixtree.Hash
}

const (
	// maxFurther is the number of anchors up to sketchDepth.
	maxFurther = sketchDense + (sketchDepth-sketchDense)/sketchStride
	// furtherSeen and furtherLeast are the prompts that count, and the least number that say something.
	furtherSeen, furtherLeast = 64, 3
	// furtherEvery is how many prompts there are for one that is compared, when half of furtherSeen have been.
	furtherEvery = 8
	// alike is the share of prompts that must go on as the one before: that of the most popular continuation is at least as great.
	alike = 0.7
)

// extent takes in a prompt and returns up to which block it goes on as most do: blocks, or more. Once enough is known, one prompt in
// furtherEvery is enough to notice when that changes.
func (f *further) extent(hashes []prefixtree.Hash, blocks int) int {
	if f.turn++; f.seen < furtherSeen/2 || f.turn%furtherEvery == 0 {
		f.compare(hashes, blocks)
	}
	if f.until > blocks && f.until <= len(hashes) && hashes[f.until-1] == f.end {
		return f.until
	}
	return blocks
}

// compare compares a prompt with the one before.
func (f *further) compare(hashes []prefixtree.Hash, blocks int) {
	last := min(len(hashes), sketchDepth) - 1
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
	f.depths[min(depth, maxFurther)]++
	if f.seen++; f.seen >= furtherSeen {
		f.seen = 0
		for i := range f.depths {
			f.depths[i] /= 2
			f.seen += int(f.depths[i])
		}
	}
	if f.seen < furtherLeast {
		return
	}
	common, from := 0, maxFurther
	for ; from > 0; from-- {
		if common += int(f.depths[from]); float64(common) >= alike*float64(f.seen) {
			break
		}
	}
	switch {
	case from == 0:
		f.until = 0
	case depth >= from: // one of the most
		at := blocks - 1
		for range from {
			at = nextAnchor(at, last)
		}
		f.until, f.end = at+1, hashes[at]
	}
}

// maxBeginnings bounds the anchors behind which prompts are compared, of each pool.
const maxBeginnings = 64

// beginnings are what prompts behind lately seen anchors are like. Those seen only once make room first: a clock with a second chance. Not
// safe for concurrent use.
type beginnings struct {
	index map[prefixtree.Hash]*beginning
	list  []beginning // all there will be, from the first prompt on
	hand  int
}

type beginning struct {
	anchor prefixtree.Hash
	again  bool // seen again since the hand passed
	further
}

// behind returns what prompts are like behind an anchor; it is to be used at once.
func (b *beginnings) behind(anchor prefixtree.Hash) *further {
	if e := b.index[anchor]; e != nil {
		e.again = true
		return &e.further
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
	e.anchor, e.further = anchor, further{}
	b.index[anchor] = e
	return &e.further
}
