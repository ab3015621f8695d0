package proxy

import (
	"encoding/hex"
)

// Trace is the place of a request in a distributed trace, by W3C Trace Context. The zero value is none.
type Trace struct {
	ID      [16]byte
	Parent  [8]byte // the span of the caller
	Sampled bool    // the caller records the trace
}

// parseTrace reads a traceparent header; a malformed one means none.
func parseTrace(text []byte) (t Trace) {
	const version, id, parent, flags, length = 0, 3, 36, 53, 55
	var read Trace
	var edge [1]byte
	switch {
	case len(text) < length || text[id-1] != '-' || text[parent-1] != '-' || text[flags-1] != '-':
		return t
	case !unhex(edge[:], text[version:id-1]) || edge[0] == 0xff:
		return t
	case len(text) > length && (edge[0] == 0 || text[length] != '-'): // later versions may append fields
		return t
	case !unhex(read.ID[:], text[id:parent-1]) || !unhex(read.Parent[:], text[parent:flags-1]) || !unhex(edge[:], text[flags:length]):
		return t
	case read.ID == t.ID || read.Parent == t.Parent:
		return t
	}
	read.Sampled = edge[0]&1 != 0
	return read
}

// unhex decodes lower-case digits, the only ones of the standard.
func unhex(dst, text []byte) bool {
	for _, c := range text {
		if 'A' <= c && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, text)
	return err == nil
}
