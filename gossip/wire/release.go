//go:build !newer

package wire

// Version is the newest format version that this release speaks. It changes only for changes that
// older readers would misunderstand: they ignore new kinds of frames and bytes at the end of known
// ones.
const Version = 1

// Hooks for the newer build; see release_newer.go.

func appended(dst []byte, _ int) []byte { return dst }

func followed(dst []byte, _ Kind) []byte { return dst }
