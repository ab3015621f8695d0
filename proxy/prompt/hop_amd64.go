package prompt

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2

// hopBlocks is hop for whole blocks; done means that at is hop's result.
func hopBlocks(b []byte, i int) (at int, done bool) {
	if !hasAVX2 || len(b)-i < 64 {
		return i, false
	}
	i += hopAVX2(&b[i], len(b)-i)
	return i, len(b)-i >= 65
}

// hopAVX2 scans blocks of 64 of the n bytes at p, the first of which is not escaped. It returns the
// offset where hop must stop or, after the last whole block, of the next byte to look at.
//
//go:noescape
func hopAVX2(p *byte, n int) int
