package wire

import "encoding/binary"

// Outcome is how a snapshot ended.
type Outcome uint8

const (
	// Complete means that all pages were sent.
	Complete Outcome = 1
	// Cold means that the publisher is a joiner itself.
	Cold Outcome = 2
	// Busy means that the publisher serves its limit, or is incomplete itself.
	Busy Outcome = 3
	// Cancelled means that the subscriber cancelled or timed out, or the publisher stops.
	Cancelled Outcome = 4
)

// AppendSnapshot appends a Snapshot frame.
func AppendSnapshot(dst []byte, request uint64) []byte {
	return appendNumber(dst, KindSnapshot, request)
}

// AppendCancel appends a Cancel frame.
func AppendCancel(dst []byte, request uint64) []byte { return appendNumber(dst, KindCancel, request) }

func appendNumber(dst []byte, k Kind, n uint64) []byte {
	dst, mark := begin(dst, k)
	dst = binary.AppendUvarint(dst, n)
	return end(dst, mark)
}

// DecodeRequest decodes the request number that begins every snapshot frame's body.
func DecodeRequest(body []byte) (request uint64, err error) {
	c := cursor{rest: body}
	request = c.uvarint()
	return request, c.err
}

// Position means that a snapshot contains all batches below Next of one process.
type Position struct {
	Name        []byte
	Incarnation uint64
	Next        uint64
}

// AppendSnapshotHead appends a SnapshotHead frame with at most MaxPositions positions.
func AppendSnapshotHead(dst []byte, request, records uint64, positions []Position) []byte {
	positions = positions[:min(len(positions), MaxPositions)]
	dst, mark := begin(dst, KindSnapshotHead)
	dst = binary.AppendUvarint(dst, request)
	dst = binary.AppendUvarint(dst, records)
	dst = binary.AppendUvarint(dst, uint64(len(positions)))
	for i := range positions {
		p := &positions[i]
		dst = binary.AppendUvarint(dst, uint64(len(p.Name)))
		dst = append(dst, p.Name...)
		dst = binary.AppendUvarint(dst, p.Incarnation)
		dst = binary.AppendUvarint(dst, p.Next)
	}
	return end(dst, mark)
}

// DecodeSnapshotHead decodes its body.
func DecodeSnapshotHead(body []byte) (request, records uint64, positions []Position, err error) {
	c := cursor{rest: body}
	request, records = c.uvarint(), c.bounded(1<<48)
	for n := c.bounded(MaxPositions); n > 0 && c.err == nil; n-- {
		p := Position{Name: c.name(), Incarnation: c.uvarint(), Next: c.bounded(maxSequence)}
		positions = append(positions, p)
	}
	return request, records, positions, c.err
}

// AppendPage appends a Page frame.
func AppendPage(dst []byte, request uint64, records int, page []byte) []byte {
	dst, mark := begin(dst, KindPage)
	dst = binary.AppendUvarint(dst, request)
	dst = binary.AppendUvarint(dst, uint64(records))
	dst = binary.AppendUvarint(dst, uint64(len(page)))
	dst = append(dst, page...)
	return end(dst, mark)
}

// DecodePage decodes its body.
func DecodePage(body []byte) (request uint64, records int, page []byte, err error) {
	c := cursor{rest: body}
	request = c.uvarint()
	records = int(c.bounded(MaxRecords))
	page = c.bytes(MaxPage)
	return request, records, page, c.err
}

// AppendSnapshotDone appends a SnapshotDone frame.
func AppendSnapshotDone(dst []byte, request uint64, o Outcome) []byte {
	dst, mark := begin(dst, KindSnapshotDone)
	dst = binary.AppendUvarint(dst, request)
	dst = append(dst, byte(o))
	return end(dst, mark)
}

// DecodeSnapshotDone decodes its body; unknown outcomes become Cancelled.
func DecodeSnapshotDone(body []byte) (request uint64, o Outcome, err error) {
	c := cursor{rest: body}
	request, o = c.uvarint(), Outcome(c.byte())
	if o < Complete || o > Cancelled {
		o = Cancelled
	}
	return request, o, c.err
}
