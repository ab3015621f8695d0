package prompt

import "slices"

// The scanner does not write prompt bytes as it goes, because members come in any order while the engine's
// template has a fixed one. It writes a tape: references to runs of the body that are canonical as they stand,
// and to the arena, which holds the few bytes that had to be made (markers, decoded escapes, small pieces).
// The tape is then played in template order, so that every byte of the body is scanned once, and long runs are
// hashed where they lie.

// op is one piece of the tape: n bytes of the body at off or, with arenaBit, of the arena.
type op struct{ off, n uint32 }

const (
	arenaBit = 1 << 31

	// inlineBytes is the length below which a run is copied to the arena rather than referenced. Adjacent arena
	// pieces merge, so this bounds the tape (8 bytes a piece) by the body whatever its escapes are, and turns
	// runs of small pieces into one Write. 64 costs less than a Write's overhead and measured the same as 32.
	inlineBytes = 64

	// keepBytes is what a parser keeps of its scratch between requests; one huge body must not hold its memory
	// for ever.
	keepBytes = 4 << 20
)

// span is a half-open range of ops. The zero value is empty.
type span struct{ from, to int }

// tape is the scratch of one parse.
type tape struct {
	body    []byte
	arena   []byte
	ops     []op
	moved   []op // scratch of arrange
	barrier int  // ops below this index are finished: nothing merges into them
}

func (t *tape) reset(body []byte) {
	if cap(t.arena)+8*cap(t.ops)+8*cap(t.moved) > keepBytes {
		t.arena, t.ops, t.moved = nil, nil, nil
	}
	t.body, t.arena, t.ops, t.barrier = body, t.arena[:0], t.ops[:0], 0
}

// mark starts a new span and returns its first index.
func (t *tape) mark() int {
	t.barrier = len(t.ops)
	return t.barrier
}

// since is the span from a mark to the end of the tape.
func (t *tape) since(from int) span { return span{from, len(t.ops)} }

// cut drops everything after a mark.
func (t *tape) cut(from int) {
	t.ops = t.ops[:from]
	t.barrier = from
}

// run appends body[from:to].
func (t *tape) run(from, to int) {
	if to-from < inlineBytes {
		if from < to {
			t.add(t.body[from:to])
		}
		return
	}
	t.ops = append(t.ops, op{uint32(from), uint32(to - from)})
}

// add appends a copy of b.
func (t *tape) add(b []byte) {
	off := len(t.arena)
	t.arena = append(t.arena, b...)
	t.grown(off)
}

// addString appends a copy of s.
func (t *tape) addString(s string) {
	off := len(t.arena)
	t.arena = append(t.arena, s...)
	t.grown(off)
}

// addByte appends c.
func (t *tape) addByte(c byte) {
	t.arena = append(t.arena, c)
	t.grown(len(t.arena) - 1)
}

// add4 appends four bytes.
func (t *tape) add4(a, b, c, d byte) {
	t.arena = append(t.arena, a, b, c, d)
	t.grown(len(t.arena) - 4)
}

// grown puts arena[off:] on the tape.
func (t *tape) grown(off int) {
	n := uint32(len(t.arena) - off)
	if k := len(t.ops); k > t.barrier {
		if last := &t.ops[k-1]; last.off&arenaBit != 0 && int(last.off&^arenaBit+last.n) == off {
			last.n += n
			return
		}
	}
	t.ops = append(t.ops, op{uint32(off) | arenaBit, n})
}

// bytes is what an op stands for: a view, valid until the arena grows.
func (t *tape) bytes(o op) []byte {
	if o.off&arenaBit != 0 {
		off := o.off &^ arenaBit
		return t.arena[off : off+o.n]
	}
	return t.body[o.off : o.off+o.n]
}

// arrange makes the tape after start the given spans, in their order, and nothing else. All spans lie at or
// after start and do not overlap. What follows on the tape may merge into it.
func (t *tape) arrange(start int, order []span) {
	at := start
	for i, s := range order {
		if s.from == s.to {
			continue
		}
		if s.from != at {
			t.rearrange(at, order[i:])
			at = len(t.ops)
			break
		}
		at = s.to
	}
	t.ops = t.ops[:at]
	t.barrier = start
}

func (t *tape) rearrange(at int, order []span) {
	t.moved = t.moved[:0]
	for _, s := range order {
		t.moved = append(t.moved, t.ops[s.from:s.to]...)
	}
	t.ops = append(t.ops[:at], t.moved...)
}

// coalesce merges neighbouring arena pieces after start.
func (t *tape) coalesce(start int) {
	t.barrier = start
	if len(t.ops)-start < 2 {
		return
	}
	out := start
	for _, o := range t.ops[start+1:] {
		last := &t.ops[out]
		if o.off&arenaBit != 0 && last.off&arenaBit != 0 && last.off+last.n == o.off {
			last.n += o.n
			continue
		}
		out++
		t.ops[out] = o
	}
	t.ops = t.ops[:out+1]
}

// flatten takes the tape after start off it and returns it as one piece.
func (t *tape) flatten(start int) op {
	ops := t.ops[start:]
	switch len(ops) {
	case 0:
		return op{}
	case 1:
		o := ops[0]
		t.cut(start)
		return o
	}
	off := len(t.arena)
	for _, o := range ops {
		t.arena = append(t.arena, t.bytes(o)...)
	}
	t.cut(start)
	return op{uint32(off) | arenaBit, uint32(len(t.arena) - off)}
}

// appendTo appends what s stands for to dst.
func (t *tape) appendTo(dst []byte, s span) []byte {
	n := 0
	for _, o := range t.ops[s.from:s.to] {
		n += int(o.n)
	}
	dst = slices.Grow(dst, n)
	for _, o := range t.ops[s.from:s.to] {
		dst = append(dst, t.bytes(o)...)
	}
	return dst
}
