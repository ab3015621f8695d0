package prompt

import "github.com/zeebo/xxh3"

// digest is a 128-bit xxh3. It stands for media, whose encoded bytes say nothing about their
// tokens. Call reset before use.
type digest struct {
	few    []byte // up to fewBytes
	stream xxh3.Hasher
	many   bool
}

// fewBytes are gathered before the streaming hash starts, which costs half a microsecond.
const fewBytes = 1 << 10

func (d *digest) reset() { d.few, d.many = d.few[:0], false }

func (d *digest) write(b []byte) {
	if !d.many && len(d.few)+len(b) <= fewBytes {
		d.few = append(d.few, b...)
		return
	}
	if !d.many {
		d.stream.Reset()
		_, _ = d.stream.Write(d.few) // cannot fail
		d.many = true
	}
	_, _ = d.stream.Write(b)
}

func (d *digest) sum() [16]byte {
	if d.many {
		return d.stream.Sum128().Bytes()
	}
	return xxh3.Hash128(d.few).Bytes()
}

func (p *Parser) feed(s span) {
	for _, o := range p.tape.ops[s.from:s.to] {
		p.media.write(p.tape.bytes(o))
	}
}

func (p *Parser) addDigest() {
	const hex = "0123456789abcdef"
	sum := p.media.sum()
	var out [2 * len(sum)]byte
	for i, c := range sum {
		out[2*i], out[2*i+1] = hex[c>>4], hex[c&15]
	}
	p.tape.add(out[:])
}
