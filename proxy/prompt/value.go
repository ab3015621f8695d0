package prompt

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strconv"
)

// Canonical JSON: no white space, canonical strings and numbers, a comma after every element (so
// that one more only appends), duplicates as in Python: first place, last value.

type member struct {
	key  op
	at   span
	hash uint64
}

// maxSorted bounds sorting, which is not linear; such objects have a handful of members.
const maxSorted = 1024

// Random, so that clients cannot construct collisions.
var nameSeed = maphash.MakeSeed()

// json puts the canonical value on the tape; sorted orders members by name at every level.
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

// jsonNumber keeps whole numbers as written and writes others with an exponent, so that 1 and 1.0
// differ as in Python.
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

// settle removes duplicates from the members after base and sorts them if asked.
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

// unique finds duplicates by a hash table with open addressing.
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
