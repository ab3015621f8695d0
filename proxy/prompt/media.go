package prompt

import "encoding/hex"

// A 128-bit xxh3 stands for media, whose encoded bytes say nothing about their tokens.

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
