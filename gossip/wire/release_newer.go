//go:build newer

package wire

// This file simulates a later release that uses every extension that gossip/DESIGN.md allows.

// Version is the newest version spoken.
const Version = 2

const (
	kindLaterUp   Kind = 0x0e
	kindLaterDown Kind = 0x1e
)

// appended adds fields to a frame whose last field is not a list or a payload.
func appended(dst []byte, mark int) []byte {
	switch Kind(dst[mark]) {
	case KindSubscribe, KindPing, KindStart, KindPong, KindSnapshotHead, KindSnapshotDone:
		return append(dst, "\x80\xff\x00later"...)
	}
	return dst
}

// followed adds a frame of a new kind behind frames that every stream carries.
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
