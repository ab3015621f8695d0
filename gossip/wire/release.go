//go:build !newer

package wire

// Version is the version of this format, announced in Subscribe and Start. Versions are for changes
// that an older reader would misunderstand; what it can safely ignore is a new kind of frame or
// bytes at the end of an old one.
const Version = 1

// appended and followed are where a later release says more; see release_newer.go.

func appended(dst []byte, _ int) []byte { return dst }

func followed(dst []byte, _ Kind) []byte { return dst }
