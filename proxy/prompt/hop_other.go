//go:build !amd64

package prompt

// hopBlocks leaves all work to hopWords.
func hopBlocks(_ []byte, i int) (at int, done bool) { return i, false }
