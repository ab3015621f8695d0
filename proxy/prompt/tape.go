package prompt

// Members come in any order, the template has one. So the scanner writes a tape of references to
// runs of the body and to an arena of made bytes, which is hashed in template order.

// op is n bytes at off of the body or, with arenaBit, of the arena.
type op struct{ off, n uint32 }

const (
	arenaBit = 1 << 31

	// Shorter runs are copied to the arena, where adjacent pieces merge, which bounds the tape; 64
	// measured the same as 32.
	inlineBytes = 64

	// keepBytes of scratch are kept between requests.
	keepBytes = 4 << 20
)

// span is a half-open range of ops.
type span struct{ from, to int }

func (s span) empty() bool { return s.from == s.to }

type tape struct {
	body    []byte
	arena   []byte
	ops     []op
	moved   []op // scratch
	barrier int  // nothing merges into ops below this index
}

func (t *tape) reset(body []byte) {
	if cap(t.arena)+8*cap(t.ops)+8*cap(t.moved) > keepBytes {
		t.arena, t.ops, t.moved = nil, nil, nil
	}
	t.body, t.arena, t.ops, t.barrier = body, t.arena[:0], t.ops[:0], 0
}

// mark starts a new span.
func (t *tape) mark() int {
	t.barrier = len(t.ops)
	return t.barrier
}

func (t *tape) since(from int) span { return span{from, len(t.ops)} }

func (t *tape) cut(from int) {
	t.ops = t.ops[:from]
	t.barrier = from
}

func (t *tape) run(from, to int) {
	if to-from < inlineBytes {
		t.add(t.body[from:to])
		return
	}
	t.ops = append(t.ops, op{uint32(from), uint32(to - from)})
}

func (t *tape) add(b []byte) {
	off := len(t.arena)
	t.arena = append(t.arena, b...)
	t.grown(off)
}

func (t *tape) addByte(c byte) {
	t.arena = append(t.arena, c)
	t.grown(len(t.arena) - 1)
}

func (t *tape) grown(off int) {
	n := uint32(len(t.arena) - off)
	if n == 0 {
		return
	}
	if k := len(t.ops); k > t.barrier {
		if last := &t.ops[k-1]; last.off&arenaBit != 0 && int(last.off&^arenaBit+last.n) == off {
			last.n += n
			return
		}
	}
	t.ops = append(t.ops, op{uint32(off) | arenaBit, n})
}

// bytes are valid until the arena grows.
func (t *tape) bytes(o op) []byte {
	if o.off&arenaBit != 0 {
		off := o.off &^ arenaBit
		return t.arena[off : off+o.n]
	}
	return t.body[o.off : o.off+o.n]
}

// arrange replaces the tape after start by these spans, which lie there without overlap.
func (t *tape) arrange(start int, order []span) {
	at := start
	for i, s := range order {
		if s.from == s.to {
			continue
		}
		if s.from != at {
			t.moved = t.moved[:0]
			for _, s := range order[i:] {
				t.moved = append(t.moved, t.ops[s.from:s.to]...)
			}
			t.ops = append(t.ops[:at], t.moved...)
			at = len(t.ops)
			break
		}
		at = s.to
	}
	t.ops = t.ops[:at]
	t.barrier = start
}

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

// flatten takes the tape after start off it, in one piece.
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

// Markers are control characters, which canonical text does not contain.
const (
	markSetting     = 0x01
	markTail        = 0x02
	markTool        = 0x03
	markFunction    = 0x04
	markType        = 0x05
	markDescription = 0x06
	markSchema      = 0x07
	markOther       = 0x08 // JSON of unknown shape
	markMessage     = 0x0e
	markText        = 0x0f
	markRefusal     = 0x10
	markReasoning   = 0x11
	markMedia       = 0x12
	markNested      = 0x13 // the part belongs to the one before
	markCall        = 0x14
	markID          = 0x15
	markName        = 0x16
	markArguments   = 0x17
	markResult      = 0x18
	markFailed      = 0x19
	markAudio       = 0x1a
	markPrompt      = 0x1b
	markTokens      = 0x1c
	markSecond      = 0x1d // of a pair
)
