package prompt

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// A strict JSON scanner (RFC 8259, valid UTF-8, no lone surrogates). An error moves p.pos to the
// end of the body, where every loop ends, so callers need not check.

func (p *Parser) fail(at int, reason string) {
	if p.bad.Reason == "" {
		p.bad = Error{Offset: at, Reason: reason}
	}
	p.pos = len(p.body)
}

func (p *Parser) peek() byte {
	b := p.body
	for p.pos < len(b) {
		c := b[p.pos]
		if c > ' ' || (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
			return c
		}
		p.pos++
	}
	return 0
}

// special flags bytes that are not ordinary ASCII text. y^2 < 0x21 holds only for control
// characters and the quote. A borrow can flag a wrong byte, but only above a right one.
func special(x uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	return (((x ^ 0x02*ones) - 0x21*ones) | ((x ^ '\\'*ones) - ones) | x) & highs
}

var class = func() (t [256]uint8) {
	for c := range t {
		if c < ' ' || c >= utf8.RuneSelf {
			t[c] = stops
		}
	}
	t['"'], t['\\'] = stops, escapes
	for _, c := range `"\ntrbf` {
		t[c] |= simple
	}
	return t
}()

const (
	stops   = 1 << iota // quote, control character, non-ASCII
	escapes             // backslash
	simple              // canonical behind a backslash
)

// hop returns the index of the first byte that is neither ordinary text nor in a canonical escape.
// It handles escapes within their word, because they are frequent and unpredictable.
func hop(b []byte, i int) int {
	// Short strings and accented text stop within a few words.
	for range 2 {
		if i+8 > len(b) {
			break
		}
		m := special(binary.LittleEndian.Uint64(b[i:]))
		if m != 0 {
			if at := i + bits.TrailingZeros64(m)>>3; class[b[at]]&stops != 0 {
				return at
			}
			break
		}
		i += 8
	}
	i, done := hopBlocks(b, i)
	if done {
		return i
	}
	return hopWords(b, i)
}

func hopWords(b []byte, i int) int {
	for i+8 <= len(b) {
		m := special(binary.LittleEndian.Uint64(b[i:]))
		next := i + 8
		for m != 0 {
			k := bits.TrailingZeros64(m) &^ 7
			at := i + k>>3
			switch c := class[b[at]]; {
			case c&escapes != 0:
				if at+1 >= len(b) || class[b[at+1]]&simple == 0 {
					return at
				}
				m &^= 0xFFFF << k
				if at == i+7 {
					next++
				}
			case c&stops != 0:
				return at
			default:
				m &^= 0xFF << k // flagged by a borrow
			}
		}
		i = next
	}
	for i < len(b) {
		switch c := class[b[i]]; {
		case c&stops != 0:
			return i
		case c&escapes != 0:
			if i+1 >= len(b) || class[b[i+1]]&simple == 0 {
				return i
			}
			i++
		}
		i++
	}
	return i
}

// text scans a string and, if emit, puts its canonical text on the tape.
func (p *Parser) text(emit bool) {
	b := p.body
	i := p.pos + 1
	from := i
	for {
		i = hop(b, i)
		if i >= len(b) {
			p.fail(i, "string does not end")
			return
		}
		switch c := b[i]; {
		case c == '"':
			if emit {
				p.tape.run(from, i)
			}
			p.pos = i + 1
			return
		case c == '\\':
			r, n := escaped(b[i:])
			if n == 0 {
				p.fail(i, "bad escape or lone surrogate")
				return
			}
			if emit {
				p.tape.run(from, i)
				p.rune(r)
			}
			i += n
			from = i
		case c < ' ':
			p.fail(i, "control character in string")
			return
		default:
			if i = sequences(b, i); i < 0 {
				p.fail(^i, "invalid UTF-8")
				return
			}
		}
	}
}

// sequences skips non-ASCII characters; it returns the complement of an invalid one's index.
func sequences(b []byte, i int) int {
	for i < len(b) && b[i] >= utf8.RuneSelf {
		// Most CJK characters have three bytes, most accented ones two.
		if c := b[i]; c >= 0xE1 && c <= 0xEC && i+2 < len(b) && b[i+1]&0xC0 == 0x80 && b[i+2]&0xC0 == 0x80 {
			i += 3
			continue
		}
		if c := b[i]; c >= 0xC2 && c <= 0xDF && i+1 < len(b) && b[i+1]&0xC0 == 0x80 {
			i += 2
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return ^i
		}
		i += n
	}
	return i
}

// escaped decodes a slash or \u escape, or a surrogate pair; n is 0 if invalid.
func escaped(b []byte) (r rune, n int) {
	if len(b) > 1 && b[1] == '/' {
		return '/', 2
	}
	hi := hex4(b)
	switch {
	case hi < 0:
		return 0, 0
	case hi < 0xD800 || hi > 0xDFFF:
		return hi, 6
	case hi > 0xDBFF:
		return 0, 0
	}
	lo := hex4(b[6:])
	if lo < 0xDC00 || lo > 0xDFFF {
		return 0, 0
	}
	return (hi-0xD800)<<10 + (lo - 0xDC00) + 0x10000, 12
}

func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

func (p *Parser) rune(r rune) {
	const hex = "0123456789abcdef"
	t := &p.tape
	off := len(t.arena)
	switch {
	case r == '"' || r == '\\':
		t.arena = append(t.arena, '\\', byte(r))
	case r >= ' ':
		t.arena = utf8.AppendRune(t.arena, r)
	default:
		if i := strings.IndexByte("\b\f\n\r\t", byte(r)); i >= 0 {
			t.arena = append(t.arena, '\\', "bfnrt"[i])
		} else {
			t.arena = append(t.arena, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		}
	}
	t.grown(off)
}

// word returns a string's canonical text, off the tape.
func (p *Parser) word() op {
	from := p.pos + 1
	if i := hop(p.body, from); i < len(p.body) && p.body[i] == '"' {
		p.pos = i + 1
		return op{uint32(from), uint32(i - from)}
	}
	at := p.tape.mark()
	p.text(true)
	return p.tape.flatten(at)
}

func (p *Parser) open() {
	if p.depth++; p.depth > MaxDepth {
		p.fail(p.pos, "nested too deeply")
		return
	}
	p.pos++
}

func (p *Parser) next(end byte, first bool) (more bool) {
	switch c := p.peek(); {
	case c == end:
		p.pos++
		p.depth--
		return false
	case first:
		return true
	case c != ',':
		p.fail(p.pos, "expected a comma or the end of an array or object")
		return false
	}
	p.pos++
	return true
}

// object yields members, with p.pos at the value, which the loop reads.
func (p *Parser) object(yield func(key op) bool) {
	p.open()
	for first := true; p.next('}', first); first = false {
		if p.peek() != '"' {
			p.fail(p.pos, "expected a member name")
			return
		}
		key := p.word()
		if p.peek() != ':' {
			p.fail(p.pos, "expected a colon")
			return
		}
		p.pos++
		p.peek()
		if !yield(key) {
			return
		}
	}
}

func (p *Parser) ifObject(yield func(key op) bool) {
	if p.peek() == '{' {
		p.object(yield)
		return
	}
	p.skip()
}

// array yields once per element, which the loop reads.
func (p *Parser) array(yield func() bool) {
	p.open()
	for first := true; p.next(']', first) && yield(); first = false {
	}
}

func (p *Parser) literal() string {
	want := "null"
	switch p.body[p.pos] {
	case 't':
		want = "true"
	case 'f':
		want = "false"
	}
	end := p.pos + len(want)
	if end > len(p.body) || string(p.body[p.pos:end]) != want {
		p.fail(p.pos, "expected a value")
		return ""
	}
	p.pos = end
	return want
}

// number returns a number as written, and whether it has neither fraction nor exponent.
func (p *Parser) number() (raw []byte, whole bool) {
	b, i := p.body, p.pos
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	switch i = digits(b, i); {
	case i == first:
		p.fail(p.pos, "expected a value")
		return nil, false
	case b[first] == '0' && i > first+1:
		p.fail(p.pos, "number with a leading zero")
		return nil, false
	}
	integer := i
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			p.fail(i, "expected a digit")
			return nil, false
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		from := i + 1
		if from < len(b) && (b[from] == '+' || b[from] == '-') {
			from++
		}
		if i = digits(b, from); i == from {
			p.fail(i, "expected a digit")
			return nil, false
		}
	}
	raw = b[p.pos:i]
	p.pos = i
	return raw, i == integer
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

func (p *Parser) skip() {
	switch p.peek() {
	case '"':
		p.text(false)
	case '{':
		for range p.object {
			p.skip()
		}
	case '[':
		for range p.array {
			p.skip()
		}
	case 't', 'f', 'n':
		p.literal()
	default:
		p.number()
	}
}
