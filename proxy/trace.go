package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// Trace is the place of a request in a distributed trace, by W3C Trace Context. The zero value is none.
type Trace struct {
	ID      [16]byte
	Parent  [8]byte // the span of the caller; zero: the trace begins here
	Sampled bool    // the caller records the trace, or it begins here
	Span    [8]byte // the router's own; zero: it records none
}

// Recorded reports whether the router records a span of the request.
func (t *Trace) Recorded() bool { return t.Span != [8]byte{} }

// begin gives the request a span if its caller records the trace or, without a caller's trace, in share of the cases.
func (t *Trace) begin(share float64) {
	switch {
	case t.ID != [16]byte{}:
		if !t.Sampled {
			return
		}
	case rand.Float64() >= share:
		return
	default:
		binary.NativeEndian.PutUint64(t.ID[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(t.ID[8:], rand.Uint64()|1)
		t.Sampled = true
	}
	binary.NativeEndian.PutUint64(t.Span[:], rand.Uint64()|1) // a zero id is invalid
}

// appendTrace adds the headers of the trace. Engines get the router's span as their parent if it records one, else what the client sent.
func (e *exchange) appendTrace(dst []byte) []byte {
	t, h := &e.rec.Trace, &e.head
	if !t.Recorded() {
		if len(h.trace) > 0 {
			dst = appendHeader(dst, []byte("Traceparent"), h.trace)
		}
	} else {
		dst = append(dst, "Traceparent: 00-"...)
		dst = hex.AppendEncode(dst, t.ID[:])
		dst = append(dst, '-')
		dst = hex.AppendEncode(dst, t.Span[:])
		dst = append(dst, "-01\r\n"...)
	}
	if len(h.traceState) > 0 && (!t.Recorded() || t.Parent != [8]byte{}) { // it belongs to the caller's trace
		dst = appendHeader(dst, []byte("Tracestate"), h.traceState)
	}
	return dst
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
