package ledger

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

// trail is a request in the engine, kept until its place in the ring is needed, since events may follow the answer.
type trail struct {
	id     uint64
	block  prefixtree.Hash // see byBlock; 0: none
	places []place         // in order; the last one is the prompt's end
	prompt int             // tokens; 0: not reported
	cached int             // tokens; -1: not reported
	output int             // tokens; -1: not reported

	from     int // blocks that the engine had when the request began; -1: no event yet
	end      int // depth of the last full block of the prompt, as far as events tell
	tail     blockID
	linked   int  // end when the trail was linked last
	waited   int  // end at which a branch was not learned, see underWay
	back     int  // index of the mark behind the previous answer, all of which the engine had; 0: none
	answered bool // blocks of its answer were stored
	touched  bool
	torn     bool // events of it are lost

	orphans []uint64 // blocks below an unknown one
	parent  uint64   // of these
}

// place is a point that is not linked yet.
type place struct {
	hash  prefixtree.Hash
	bytes int
	text  bool
	gap   bool // a mark behind messages whose marks are not known
}

const (
	maxTrails  = 1 << 10 // an engine runs some hundred requests at a time
	maxPlaces  = 1 << 16 // of all trails; 24 bytes each
	maxOrphans = 1 << 12 // blocks of a trail
	largeBlock = 1 << 8  // tokens; assumed before the engine names its size
)

// trails is a ring of requests.
type trails struct {
	byID    map[uint64]*trail
	byBlock map[prefixtree.Hash]*trail // of other nodes, by the last block of their text, until their placement is heard of
	order   []*trail                   // oldest first
	places  int
}

func newTrails() trails {
	return trails{byID: make(map[uint64]*trail), byBlock: make(map[prefixtree.Hash]*trail)}
}

// forgetBegun drops the requests of which the engine has computed something.
func (t *trails) forgetBegun() {
	sent := *t
	*t = newTrails()
	for _, n := range sent.order {
		if n.from < 0 && !n.torn && len(n.orphans) == 0 {
			t.add(n)
		}
	}
}

func (t *trails) add(n *trail) {
	for len(t.order) > 0 && (len(t.order) >= maxTrails || t.places+len(n.places) > maxPlaces) {
		oldest := t.order[0]
		t.order[0] = nil
		t.order = t.order[1:]
		t.places -= len(oldest.places)
		delete(t.byID, oldest.id)
		if t.byBlock[oldest.block] == oldest {
			delete(t.byBlock, oldest.block)
		}
	}
	t.byID[n.id] = n
	t.order = append(t.order, n)
	t.places += len(n.places)
}

// Sent notes a request before its dispatch to the engine, so that its events find its text. It keeps nothing of q.
func (l *Ledger) Sent(id uint64, q *Prompt) {
	t := newTrail(id, len(q.Blocks)+len(q.Marks))
	marks := q.Marks
	for i, h := range q.Blocks {
		for len(marks) > 0 && marks[0].Bytes < (i+1)*q.BlockBytes {
			t.places = append(t.places, place{hash: marks[0].Hash, bytes: marks[0].Bytes})
			marks = marks[1:]
		}
		t.places = append(t.places, place{hash: h, bytes: (i + 1) * q.BlockBytes, text: true})
	}
	for _, m := range marks {
		t.places = append(t.places, place{hash: m.Hash, bytes: m.Bytes})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trails.byID[id] == nil {
		l.trails.add(t)
		l.cfg.Links.sent(t.places[len(t.places)-1].hash, l.cfg.Engine)
	}
}

func newTrail(id uint64, places int) *trail {
	return &trail{id: id, places: make([]place, 0, places), cached: -1, output: -1, from: -1}
}

// Ended notes the token counts that the engine reported for a request; -1: not reported.
func (l *Ledger) Ended(id uint64, prompt, cached, output int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.trails.byID[id]
	if t == nil {
		return
	}
	size := l.size
	if size == 0 {
		size = largeBlock
	}
	if t.from < 0 && len(t.orphans) == 0 && cached >= 0 && cached+2*size <= prompt {
		l.stats.Early++
	}
	if l.size == 0 {
		return
	}
	t.prompt, t.cached, t.output = max(prompt, 0), cached, output
	if bytes := t.places[len(t.places)-1].bytes; prompt > 0 && bytes > 0 {
		seen := float64(prompt) / float64(bytes)
		if l.perByte == 0 {
			l.perByte = seen
		}
		l.perByte += perByteSteps * (seen - l.perByte)
	}
	l.adopt(t)
	if t.from < 0 {
		if cached >= 0 && cached+l.size <= prompt {
			l.tear(t)
		}
		return
	}
	if cached >= 0 && cached == t.from*l.size {
		l.stats.Agreed++
	} else if cached >= 0 {
		l.stats.Contradicted++
	}
	l.link(t)
}

// trailOf returns the request that a session id names, nil if it is not one of this fleet's. Of another node's request it knows
// what the stamp tells.
func (l *Ledger) trailOf(session []byte) *trail {
	if len(session) == 0 {
		l.stats.Foreign++
		return nil
	}
	s, ok := l.cfg.Stamps.Parse(session)
	if !ok {
		l.stats.Foreign++
		return nil
	}
	if t := l.trails.byID[s.ID]; t != nil {
		return t
	}
	t := newTrail(s.ID, mostInner+1)
	above := 0
	for i, m := range s.Inner {
		if m.Hash != 0 && m.Bytes > above && m.Bytes < s.Bytes {
			t.places = append(t.places, place{hash: m.Hash, bytes: m.Bytes, gap: i == 1 && s.Inner[mostInner-1].Hash != 0})
			above = m.Bytes
		}
	}
	t.places = append(t.places, place{hash: s.End, bytes: s.Bytes})
	l.trails.add(t)
	l.cfg.Links.sent(s.End, l.cfg.Engine)
	if t.block = s.Block; !l.follow(t) && t.block != 0 {
		l.trails.byBlock[t.block] = t
	}
	return t
}

func (l *Ledger) touch(t *trail) {
	if !t.touched {
		t.touched = true
		l.touched = append(l.touched, t)
	}
}

// grown notes n blocks that the request stored down to tail: of its prompt, perhaps in chunks, or then of its answer. vLLM stores an
// answer's blocks one by one; SGLang at the end of the answer, all at once.
func (l *Ledger) grown(t *trail, tail blockID, n int) {
	if t.end > 0 && !t.answered && (n == 1 || l.together && l.prefilled(t)) {
		t.answered, t.linked = true, -1 // the prompt ends where it was not expected to
	}
	if !t.answered {
		t.end = l.blocks.at(tail).depth()
	}
	t.tail = tail
}

// prefilled estimates whether all of a prompt is stored, from what its text behind the deepest known place is worth. Another chunk would
// bring more than what is left to the estimate's error.
func (l *Ledger) prefilled(t *trail) bool {
	depth, bytes := 0, 0
	last := len(t.places) - 1
	for i := last - 1; i >= 0; i-- {
		if p := l.points.find(t.places[i].hash); p != nil && !p.is(isTorn) {
			depth, bytes = p.depth(), t.places[i].bytes
			break
		}
	}
	rest := l.perByte * float64(t.places[last].bytes-bytes) / float64(l.size)
	return rest > 0 && float64(t.end-depth) >= prefilledShare*rest
}

func (t *trail) orphan(e *events.Event) {
	if len(t.orphans) == 0 {
		t.parent = e.Parent
	} else if t.orphans[len(t.orphans)-1] != e.Parent {
		return // a second sequence of the request
	}
	if len(t.orphans)+len(e.Hashes) <= maxOrphans {
		t.orphans = append(t.orphans, e.Hashes...)
	}
}

// adopt places a request's blocks below an unknown block once the engine has reported its tokens: those that it had cached are
// the depth of the unknown block, if all that it stored since is there.
func (l *Ledger) adopt(t *trail) {
	if len(t.orphans) == 0 || t.cached <= 0 || t.output < 0 ||
		t.cached/l.size+len(t.orphans) != (t.prompt+t.output-1)/l.size { // the last token is never fed back
		return
	}
	parent, known := l.blocks.find(t.parent)
	if !known {
		if l.blocks.full() && !l.blocks.makeRoom(l.keep) {
			l.stats.Refused += uint64(len(t.orphans))
			return
		}
		var ok bool
		_, at, _ := seek(&l.blocks.index, l.blocks.entries, t.parent)
		if parent, ok = l.blocks.insert(at, t.parent, root, t.cached/l.size); !ok {
			return
		}
	}
	orphans := t.orphans
	t.orphans = nil
	l.grow(t, parent, orphans)
}

// tear notes that the end of a request's chain is not known.
func (l *Ledger) tear(t *trail) {
	t.torn = true
	end := &t.places[len(t.places)-1]
	p := l.points.find(end.hash)
	if p == nil {
		l.points.put(point{hash: end.hash, want: isEnd | isTorn})
		return
	}
	p.want |= isTorn
}

// hit learns from where a request began to compute: of its prompt the engine had the blocks down to parent, and no more.
func (l *Ledger) hit(t *trail, parent blockID) {
	t.from = l.blocks.at(parent).depth()
	l.fetch(t)
	at := len(t.places) - 1
	for at >= 0 && l.find(t.places[at].hash) == nil {
		at--
	}
	if at < 0 {
		return
	}
	p := l.find(t.places[at].hash)
	id, _ := l.left(p)
	left := l.blocks.at(id).depth()
	switch {
	case at == len(t.places)-1: // the same prompt again
	case p.is(isEnd):
		if left > p.depth() { // the last answer is still there
			came := 0.0
			if t.from > p.depth()+(left-p.depth())/2 {
				came = 1
			}
			if t.from >= left {
				t.back = t.nextMark(at)
			}
			l.answers += answersSteps * (came - l.answers)
		}
		if p.is(isExact) && t.from < min(left, p.depth()) {
			l.correct(id, t.from)
		}
	case left >= p.depth() && t.from <= l.mostBefore(t, at, p) && !l.underWay(parent):
		// The texts part behind p, and this is where. More would be text that is not linked.
		p.setBlock(parent)
		p.engine = l.blocks.at(parent).hash
		p.want = p.want&^wantMask | uint32(t.from) | isExact
		l.cfg.Links.learn(p, l.size)
	}
}

// fetch loads what the searches for a request's places read, see index.fetch.
func (l *Ledger) fetch(t *trail) {
	for i := range t.places {
		l.points.index.fetch(uint64(t.places[i].hash))
	}
	l.cfg.Links.fetch(t.places)
}

const fewestBytes = 2 // of text per token, in any language

// mostBefore returns how many blocks of a prompt the places up to one, whose point is p, and the text behind it fill at most, if the text
// is no longer known there. It counts from the exact place above: the depth of the place itself is interpolated, or perhaps wrong.
func (l *Ledger) mostBefore(t *trail, at int, p *point) int {
	next := t.places[at+1].bytes
	if next-t.places[at].bytes > l.cfg.BlockBytes { // a prompt of another node, which may share more text than the places that are known
		if p.is(isExact) {
			return p.depth()
		}
		return p.depth() + 1 + int(l.perByte*float64(l.cfg.BlockBytes))/l.size
	}
	depth, bytes := 0, 0
	for i := at - 1; i >= 0; i-- {
		if p := l.points.find(t.places[i].hash); p != nil && p.is(isExact) {
			depth, bytes = p.depth(), t.places[i].bytes
			break
		}
	}
	return depth + 1 + (next-bytes)/fewestBytes/l.size
}

// underWay reports whether a block is the last one so far of a prompt that the engine computes in chunks: the next chunk may be
// text of another prompt too, and until the last one the places in the prompt are interpolated as if it ended here. A prompt of
// another node has perhaps ended here, since only its answer's first block tells, so each chunk is waited for once.
func (l *Ledger) underWay(id blockID) (waits bool) {
	if id == root {
		return false
	}
	for _, t := range l.trails.order {
		if t.tail == id && t.prompt == 0 && !t.answered && t.waited != t.end {
			t.waited, waits = t.end, true
		}
	}
	return waits
}

// nextMark returns the index of the next mark in the text; 0 if it is not known.
func (t *trail) nextMark(i int) int {
	for i++; t.places[i].text; i++ {
	}
	if t.places[i].gap {
		return 0
	}
	return i
}

// correct removes the blocks of a chain that the engine did not find, below the depth that it found.
func (l *Ledger) correct(id blockID, found int) {
	l.stats.Corrected++
	for l.blocks.at(id).depth() > found && id != root {
		l.blocks.setCopies(id, events.GPU, 0)
		id = l.blocks.at(id).parent
	}
}

// link places the points of a request in its chain of blocks. Between known places a byte is worth equally many tokens.
func (l *Ledger) link(t *trail) {
	if t.linked == 0 {
		l.stats.Linked++
	}
	t.linked = t.end
	end, flags := float64(t.end)+0.5, uint32(isEnd)
	last := len(t.places) - 1
	if t.prompt == 0 && !t.answered && !l.prefilled(t) { // its next chunk is to come
		end = max(end, l.perByte*float64(t.places[last].bytes)/float64(l.size))
	}
	if t.prompt > 0 {
		l.together = l.together || t.end > t.prompt/l.size
		end = float64(t.prompt) / float64(l.size)
		flags |= isExact
		if t.prompt%l.size == 0 {
			flags |= isWhole
		}
	}
	l.tie(t, end)
	l.fresh = l.fresh[:0]
	for k := 1; k < len(l.knots); k++ {
		a, b := l.knots[k-1], l.knots[k]
		perByte := (b.depth - a.depth) / float64(max(b.bytes-a.bytes, 1))
		for i := a.place + 1; i <= min(b.place, last-1); i++ {
			pl := &t.places[i]
			depth := int(a.depth + perByte*float64(pl.bytes-a.bytes) + rounding)
			n := point{hash: pl.hash, want: uint32(depth)}
			if i > 0 && i == t.back {
				n.want |= isExact
			}
			if shown, known := l.cfg.Links.find(pl.hash, l.size); known && int(shown.want&wantMask) == depth {
				n.want |= isExact
			}
			if known := l.points.find(pl.hash); known != nil && (known.depth() <= t.from || known.is(isExact|isEnd)) {
				if id, _ := l.left(known); l.blocks.at(id).depth() >= known.depth() && known.is(isText) == pl.text {
					continue
				}
				n.want = known.want &^ isTorn // its blocks were gone, and are back
				n.setLooked(0)
			}
			if pl.text {
				n.want |= isText
			}
			if n.depth() > 0 {
				l.fresh = append(l.fresh, n)
			}
		}
	}
	id := t.tail
	for i := len(l.fresh) - 1; i >= 0; i-- {
		n := &l.fresh[i]
		if at := l.blocks.above(id, n.depth()); l.blocks.at(at).depth() == n.depth() {
			n.setBlock(at)
			id, n.engine = at, l.blocks.at(at).hash
			l.points.put(*n)
		}
	}
	if t.torn || l.blocks.at(t.tail).depth() < int(end) {
		flags |= isTorn
	}
	own := point{hash: t.places[last].hash, want: uint32(min(int(end), maxDepth)) | flags}
	if at := l.blocks.at(l.blocks.above(t.tail, own.depth())); own.is(isExact) && !own.is(isTorn) && at.depth() == own.depth() {
		own.engine = at.hash
		l.cfg.Links.learn(&own, l.size)
	}
	l.points.put(own)
	l.answer(t)
}

// answer moves a prompt's end to the last block of the answer.
func (l *Ledger) answer(t *trail) {
	if p := l.points.find(t.places[len(t.places)-1].hash); p != nil && p.is(isEnd) {
		p.setBlock(t.tail)
		p.engine = l.blocks.at(t.tail).hash
		p.setAnswer(l.blocks.at(t.tail).depth() - p.depth())
	}
}

// rounding keeps a place at the end of a KV block there.
const rounding = 1e-6 // blocks

// knot is a place in the text whose depth, in blocks, is known.
type knot struct {
	place, bytes int
	depth        float64
}

// tie lists the known places of a request in order, from its first byte to its end.
func (l *Ledger) tie(t *trail, end float64) {
	l.knots = append(l.knots[:0], knot{place: -1})
	last, answered := len(t.places)-1, 0.0
	for i, pl := range t.places[:last] {
		depth := 0.0
		if !pl.text {
			if !pl.gap {
				depth = answered
			}
			answered = 0
		}
		if p := l.points.find(pl.hash); i > 0 && i == t.back {
			depth = float64(t.from) + 0.5
		} else if p != nil && p.is(isExact|isEnd) && !p.is(isTorn|isText) {
			depth = float64(p.depth()) + 0.5
			if n, known := p.answer(); p.is(isEnd) && known && n > 0 && l.answers >= seesAnswers {
				answered = depth + float64(n)
			}
		} else if !pl.text {
			if n, known := l.cfg.Links.find(pl.hash, l.size); known {
				depth = float64(n.want&wantMask) + 0.5
			}
		}
		if depth >= l.knots[len(l.knots)-1].depth && depth > 0 && depth <= end {
			l.knots = append(l.knots, knot{i, pl.bytes, depth})
		}
	}
	l.knots = append(l.knots, knot{last, t.places[last].bytes, end})
}
