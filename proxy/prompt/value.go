package prompt

import (
	"bytes"
	"encoding/hex"
	"hash/maphash"
	"slices"
	"strconv"
)

// Canonical JSON: no white space, canonical strings and numbers, a comma after every element (so
// that one more only appends), duplicates as in Python: first place, last value.

// maxSorted bounds sorting, which is not linear; such objects have a handful of members.
const maxSorted = 1024

// Random, so that clients cannot construct collisions.
var nameSeed = maphash.MakeSeed()

// json puts the canonical value on the tape; sorted orders members at every level.
func (p *Parser) json(sorted bool) {
	switch p.peek() {
	case '"':
		p.tape.addByte('"')
		p.text(true)
		p.tape.addByte('"')
	case '{':
		p.jsonObject(sorted)
	case '[':
		p.tape.addByte('[')
		for range p.array {
			p.json(sorted)
			p.tape.addByte(',')
		}
		p.tape.addByte(']')
	case 't', 'f', 'n':
		p.tape.add([]byte(p.literal()))
	default:
		p.jsonNumber()
	}
}

// Other than whole numbers get an exponent, so that 1 and 1.0 differ as in Python.
func (p *Parser) jsonNumber() {
	raw, whole := p.number()
	switch {
	case !whole:
		// Beyond float64 a number becomes infinite, as in Python.
		f, _ := strconv.ParseFloat(string(raw), 64)
		off := len(p.tape.arena)
		p.tape.arena = strconv.AppendFloat(p.tape.arena, f, 'e', -1, 64)
		p.tape.grown(off)
	case string(raw) == "-0":
		p.tape.addByte('0')
	default:
		p.tape.add(raw)
	}
}

func (p *Parser) jsonObject(sorted bool) {
	p.tape.addByte('{')
	start, base := p.tape.mark(), len(p.members)
	for key := range p.object {
		from := p.tape.mark()
		p.memberName(key)
		p.json(sorted)
		p.remember(key, from)
	}
	p.settle(base, sorted)
	p.arrangeMembers(start, base)
	p.tape.addByte('}')
	p.tape.coalesce(start - 1) // including the brace
}

func (p *Parser) memberName(key op) {
	t := &p.tape
	off := len(t.arena)
	t.arena = append(t.arena, '"')
	t.arena = append(t.arena, t.bytes(key)...)
	t.arena = append(t.arena, '"', ':')
	t.grown(off)
}

func (p *Parser) remember(key op, from int) {
	p.tape.addByte(',')
	p.members = append(p.members, member{key: key, at: p.tape.since(from), hash: maphash.Bytes(nameSeed, p.tape.bytes(key))})
}

// settle removes duplicates from the members after base.
func (p *Parser) settle(base int, sorted bool) {
	ms := p.unique(p.members[base:])
	p.members = p.members[:base+len(ms)]
	switch {
	case !sorted:
	case len(ms) > maxSorted:
		p.fail(p.pos, "too many members")
	default:
		slices.SortFunc(ms, func(a, b member) int { return bytes.Compare(p.tape.bytes(a.key), p.tape.bytes(b.key)) })
	}
}

// unique uses a hash table with open addressing.
func (p *Parser) unique(ms []member) []member {
	if len(ms) < 2 {
		return ms
	}
	size := 1
	for size < 2*len(ms) {
		size *= 2
	}
	if cap(p.table) < size {
		p.table = make([]int32, size)
	}
	table := p.table[:size]
	clear(table)
	n := 0
next:
	for _, m := range ms {
		at := int(m.hash) & (size - 1)
		for ; table[at] != 0; at = (at + 1) & (size - 1) {
			if same := &ms[table[at]-1]; same.hash == m.hash && bytes.Equal(p.tape.bytes(same.key), p.tape.bytes(m.key)) {
				same.at = m.at
				continue next
			}
		}
		ms[n] = m
		n++
		table[at] = int32(n)
	}
	return ms[:n]
}

// arrangeMembers makes the tape after start the spans in before, then the members after base.
func (p *Parser) arrangeMembers(start, base int, before ...span) {
	spans := append(p.spans[:0], before...)
	for i := range p.members[base:] {
		spans = append(spans, p.members[base+i].at)
	}
	p.spans = spans
	p.members = p.members[:base]
	p.tape.arrange(start, spans)
}

// field reads a string behind a marker (0 for none). Null means absent.
func (p *Parser) field(mark byte) {
	c := p.peek()
	if c == 'n' {
		p.literal()
		return
	}
	if mark != 0 {
		p.tape.addByte(mark)
	}
	if c == '"' {
		p.text(true)
	} else {
		p.other()
	}
}

// extra reads a member without a place of its own; null means absent.
func (p *Parser) extra(key op) {
	from := p.tape.mark()
	p.memberName(key)
	at := p.tape.mark()
	p.json(true)
	null := p.is(at, "null")
	p.remember(key, from)
	if null {
		p.tape.cut(from)
		p.members[len(p.members)-1].at = span{}
	}
}

// is reports whether the tape after a mark is one of these values.
func (p *Parser) is(at int, values ...string) bool {
	if len(p.tape.ops) != at+1 {
		return false
	}
	b := p.tape.bytes(p.tape.ops[at])
	return slices.ContainsFunc(values, func(v string) bool { return string(b) == v })
}

// keep makes the tape after start what comes before an object's members, lead and these members.
func (p *Parser) keep(start, base int, list inOrder, f *parts, lead span, names ...string) {
	p.members = p.members[:base]
	order := parts{f[0], lead}
	for i, name := range names {
		order[2+i] = f[list.find([]byte(name)).slot]
	}
	p.tape.arrange(start, order[:])
}

// lead puts markers (0 for none) around a text.
func (p *Parser) lead(before byte, text string, after byte) span {
	from := p.tape.mark()
	if before != 0 {
		p.tape.addByte(before)
	}
	p.tape.add([]byte(text))
	if after != 0 {
		p.tape.addByte(after)
	}
	return p.tape.since(from)
}

// In a list null is no element and other values become JSON.
func (p *Parser) list(yield func() bool) {
	switch p.peek() {
	case '[':
		p.array(yield)
	case 'n':
		p.literal()
	default:
		p.other()
	}
}

// other reads a value of unexpected shape.
func (p *Parser) other() {
	p.tape.addByte(markOther)
	p.json(true)
}

// truth reads a boolean as engines do, which also accept 1 and a few words.
func (p *Parser) truth() bool {
	switch c := p.peek(); {
	case c == 't' || c == 'f' || c == 'n':
		return p.literal() == "true"
	case c == '"':
		b := p.tape.bytes(p.word())
		switch string(bytes.ToLower(b[:min(len(b), 5)])) {
		case "true", "t", "1", "on", "y", "yes":
			return true
		}
	case c == '1':
		raw, _ := p.number()
		return string(raw) == "1" || string(raw) == "1.0"
	default:
		p.skip()
	}
	return false
}

// Encoded media say nothing about their tokens, so a 128-bit xxh3 stands for them.
func (p *Parser) feed(s span) {
	for _, o := range p.tape.ops[s.from:s.to] {
		_, _ = p.media.Write(p.tape.bytes(o)) // cannot fail
	}
}

func (p *Parser) addDigest() {
	sum := p.media.Sum128().Bytes()
	var out [2 * len(sum)]byte
	hex.Encode(out[:], sum[:])
	p.tape.add(out[:])
}
