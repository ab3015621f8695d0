package ledger

import "grapevine.example/prefixtree"

// point is a place in a text whose prefix this engine computed: the end of a block of the text, of a message or of a prompt.
type point struct {
	hash prefixtree.Hash
	// engine is the last full KV block before the place; behind the end of a prompt, the last one of its answer. block is the
	// same or, once that was swept, what is left above.
	engine uint64
	block  blockID
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
	at     map[prefixtree.Hash]int32
	unused []int32
	hand   int
	most   int
	moved  int // ends above which blocks are gone, by the last look at all
}

func newPoints(most int) points { return points{most: most, at: make(map[prefixtree.Hash]int32)} }

func (p *points) find(h prefixtree.Hash) *point {
	if i, ok := p.at[h]; ok {
		return &p.all[i]
	}
	return nil
}

func (p *points) put(n point) {
	if known := p.find(n.hash); known != nil {
		*known = n
		return
	}
	if len(p.unused) == 0 && len(p.all) < p.most {
		p.unused = append(p.unused, int32(len(p.all)))
		p.all = append(p.all, point{})
	}
	if len(p.unused) == 0 {
		p.hand = (p.hand + 1) % len(p.all)
		p.drop(p.hand)
	}
	last := len(p.unused) - 1
	i := p.unused[last]
	p.unused = p.unused[:last]
	p.at[n.hash] = i
	p.all[i] = n
}

func (p *points) drop(i int) {
	delete(p.at, p.all[i].hash)
	p.all[i] = point{}
	p.unused = append(p.unused, int32(i))
}
