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

const (
	// pairwise members are compared in pairs to find duplicates.
	pairwise = 8

	// maxSorted bounds sorting, which is not linear; such objects have a handful of members.
	maxSorted = 1024
)

// Random, so that clients cannot construct collisions.
var nameSeed = maphash.MakeSeed()

// json puts the canonical value on the tape; sorted orders members by name at every level.
func (p *Parser) json(sorted bool) bool {
	switch p.peek() {
	case '"':
		p.tape.addByte('"')
		if !p.text(true) {
			return false
		}
		p.tape.addByte('"')
		return true
	case '{':
		return p.jsonObject(sorted)
	case '[':
		if !p.open() {
			return false
		}
		p.tape.addByte('[')
		for first := true; ; first = false {
			more, ok := p.next(']', first)
			if !ok {
				return false
			}
			if !more {
				p.tape.addByte(']')
				return true
			}
			if !p.json(sorted) {
				return false
			}
			p.tape.addByte(',')
		}
	case 't', 'f', 'n':
		s, ok := p.literal()
		p.tape.addString(s)
		return ok
	}
	return p.jsonNumber()
}

// jsonNumber keeps whole numbers as written and writes others with an exponent, so that 1 and 1.0
// differ as in Python.
func (p *Parser) jsonNumber() bool {
	raw, whole, ok := p.number()
	if !ok {
		return false
	}
	switch {
	case !whole:
		// Beyond float64 a number becomes infinite, as in Python.
		f, _ := strconv.ParseFloat(string(raw), 64)
		off := len(p.tape.arena)
		p.tape.arena = strconv.AppendFloat(p.tape.arena, f, 'e', -1, 64)
		p.tape.grown(off)
	case len(raw) == 2 && raw[0] == '-' && raw[1] == '0':
		p.tape.addByte('0')
	default:
		p.tape.add(raw)
	}
	return true
}

func (p *Parser) jsonObject(sorted bool) bool {
	if !p.open() {
		return false
	}
	p.tape.addByte('{')
	start, base := p.tape.mark(), len(p.members)
	for first := true; ; first = false {
		key, more, ok := p.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if !p.jsonMember(key, sorted) {
			return false
		}
	}
	if !p.settle(base, sorted) {
		return false
	}
	p.arrangeMembers(start, base)
	p.tape.addByte('}')
	p.tape.coalesce(start - 1) // including the brace
	return true
}

func (p *Parser) jsonMember(key op, sorted bool) bool {
	from := p.tape.mark()
	p.memberName(key)
	if !p.json(sorted) {
		return false
	}
	p.remember(key, from)
	return true
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
func (p *Parser) settle(base int, sorted bool) bool {
	ms := p.members[base:]
	if len(ms) <= pairwise {
		ms = p.uniquePairwise(ms)
	} else {
		ms = p.uniqueHashed(ms)
	}
	p.members = p.members[:base+len(ms)]
	if !sorted {
		return true
	}
	if len(ms) > maxSorted {
		return p.fail(p.pos, "too many members")
	}
	slices.SortFunc(ms, func(a, b member) int { return bytes.Compare(p.tape.bytes(a.key), p.tape.bytes(b.key)) })
	return true
}

func (p *Parser) same(a, b *member) bool {
	return a.hash == b.hash && bytes.Equal(p.tape.bytes(a.key), p.tape.bytes(b.key))
}

func (p *Parser) uniquePairwise(ms []member) []member {
	n := 0
next:
	for i := range ms {
		for j := range ms[:n] {
			if p.same(&ms[i], &ms[j]) {
				ms[j].at = ms[i].at
				continue next
			}
		}
		ms[n] = ms[i]
		n++
	}
	return ms[:n]
}

func (p *Parser) uniqueHashed(ms []member) []member {
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
	for i := range ms {
		at := int(ms[i].hash) & (size - 1)
		for ; table[at] != 0; at = (at + 1) & (size - 1) {
			if j := table[at] - 1; p.same(&ms[i], &ms[j]) {
				ms[j].at = ms[i].at
				continue next
			}
		}
		ms[n] = ms[i]
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
