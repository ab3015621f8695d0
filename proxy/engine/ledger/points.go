package ledger

import "grapevine.example/prefixtree"

// point is a place in a text whose prefix this engine computed: the end of a block of the text, of a message or of a prompt.
type point struct {
	hash prefixtree.Hash
	// engine is the last full KV block before the place; behind the end of a prompt, the last one of its answer. ref is the
	// number of that block or, once it was swept, of the nearest block above that is left, with the flag hasMoved.
	engine uint64
	ref    uint32
	want   uint32 // bits 0-19 the depth of the last full KV block before the place; then the flags below
}

const (
	isEnd    = 1 << 20 // of a request's prompt: what follows is its answer
	isText   = 1 << 21 // the end of a block of the text, which the prefix tree knows
	isExact  = 1 << 22 // want was seen, not interpolated
	isWhole  = 1 << 23 // the prompt ends with its last full block, whose last token an engine always computes
	isTorn   = 1 << 24 // events are lost: more may be cached than is known
	wantMask = maxDepth

	// The answer's length in blocks, at most 127.
	answerBits = 25
	mostAnswer = 1<<(32-answerBits) - 1
)

// hasMoved is a flag of point.ref.
const hasMoved = 1 << 31

func (p *point) block() blockID { return blockID(p.ref &^ hasMoved) }

func (p *point) moved() bool { return p.ref&hasMoved != 0 }

func (p *point) setBlock(id blockID) { p.ref = uint32(id) }

// move refers to what is left above.
func (p *point) move(id blockID) {
	if id != p.block() {
		p.ref = uint32(id) | hasMoved
	}
}

func (p point) key() uint64 { return uint64(p.hash) }

func (p *point) depth() int { return int(p.want & wantMask) }

// answer returns the length of the answer behind an end, in blocks, and whether it is known.
func (p *point) answer() (blocks int, known bool) {
	n := int(p.want >> answerBits)
	return n, n < mostAnswer
}

func (p *point) setAnswer(blocks int) {
	p.want = p.want&(1<<answerBits-1) | uint32(max(0, min(blocks, mostAnswer)))<<answerBits
}

// lookedAt returns in how many calls in a row Gone has found the place gone, at most 127. A place without an answer has room for it.
func (p *point) lookedAt() int { return int(p.want >> answerBits) }

func (p *point) setLooked(n int) {
	if !p.is(isEnd) {
		p.setAnswer(n)
	}
}

func (p *point) is(flag uint32) bool { return p.want&flag != 0 }

// points holds a bounded number of points. At the bound a new one takes the place of the oldest: one that is used again returns
// with the next request for its text.
type points struct {
	all    []point // hash 0: unused
	index  index   // of all
	unused []int32
	hand   int
	most   int
	moved  int // ends above which blocks are gone, by the last look at all
}

func newPoints(most int, seed uint64) points {
	p := points{most: most, index: index{seed: seed}}
	p.enlarge(leastBlocks)
	return p
}

func (p *points) used() int { return len(p.all) - len(p.unused) }

func (p *points) find(h prefixtree.Hash) *point {
	if i, _, ok := seek(&p.index, p.all, uint64(h)); ok {
		return &p.all[i]
	}
	return nil
}

func (p *points) enlarge(n int) {
	p.index.enlarge(min(n, p.most), keys(p.all))
}

func (p *points) put(n point) {
	known, s, ok := seek(&p.index, p.all, n.key())
	if ok {
		p.all[known] = n
		return
	}
	if len(p.unused) == 0 {
		if len(p.all) < p.most {
			p.unused = append(p.unused, int32(len(p.all)))
			p.all = append(p.all, point{})
			if !p.index.fits(len(p.all)) {
				p.enlarge(2 * len(p.all))
			}
		} else {
			p.hand = (p.hand + 1) % len(p.all)
			p.drop(p.hand)
		}
		_, s, _ = seek(&p.index, p.all, n.key())
	}
	last := len(p.unused) - 1
	if i := p.unused[last]; p.index.put(s, uint32(i)) {
		p.unused = p.unused[:last]
		p.all[i] = n
	}
}

func (p *points) drop(i int) {
	p.index.remove(p.all[i].key(), uint32(i))
	p.all[i] = point{}
	p.unused = append(p.unused, int32(i))
}
