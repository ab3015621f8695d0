package prompt

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2

// hopBlocks does hop's work for whole blocks of 64 bytes. It returns the index to go on from and whether that is
// hop's result.
func hopBlocks(b []byte, i int) (at int, done bool) {
	if !hasAVX2 || len(b)-i < 64 {
		return i, false
	}
	i += hopAVX2(&b[i], len(b)-i)
	return i, len(b)-i >= 65
}

// hopAVX2 passes blocks of 64 of the n bytes at p, of which the first is not escaped, as long as there is nothing
// in them that stops hop. It returns the offset of what does or, at the end of the last whole block, of the first
// byte not looked at; a backslash that ends a block without its escaped character counts as not looked at.
//
//go:noescape
func hopAVX2(p *byte, n int) int
