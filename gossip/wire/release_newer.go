//go:build newer

package wire

// A release that does not exist yet, to try with what is shipped how the two get along: it speaks
// one version more, and does all that DESIGN.md ("Versions") allows later releases to do.

// Version is what this release speaks besides Oldest.
const Version = 2

// The kinds of frames that this release adds, in either direction.
const (
	kindLaterUp   Kind = 0x0e
	kindLaterDown Kind = 0x1e
)

// appended adds fields to a frame that is about to end: to those whose last field is not a list or
// a payload.
func appended(dst []byte, mark int) []byte {
	switch Kind(dst[mark]) {
	case KindSubscribe, KindPing, KindStart, KindPong, KindSnapshotHead, KindSnapshotDone:
		return append(dst, "\x80\xff\x00later"...)
	}
	return dst
}

// followed adds a frame of a new kind behind those that every stream has all the time.
func followed(dst []byte, k Kind) []byte {
	switch k {
	case KindPing:
		return later(dst, kindLaterUp, 40)
	case KindPong:
		return later(dst, kindLaterDown, 4000)
	}
	return dst
}

func later(dst []byte, k Kind, size int) []byte {
	dst, mark := begin(dst, k)
	for i := range size {
		dst = append(dst, byte(i))
	}
	return end(dst, mark)
}
