//go:build !amd64

package prompt

// hopBlocks does nothing here: hop's loop over words is all there is.
func hopBlocks(_ []byte, i int) (at int, done bool) { return i, false }
