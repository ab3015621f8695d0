package wire

import "encoding/binary"

// Outcome says how a snapshot ended.
type Outcome uint8

// Outcomes of a snapshot.
const (
	// Complete: all pages were sent.
	Complete Outcome = 1
	// Cold: the publisher is itself a joiner and has no knowledge worth sending.
	Cold Outcome = 2
	// Busy: the publisher serves as many snapshots as it allows, or has only a part of one itself;
	// ask again, or another node.
	Busy Outcome = 3
	// Cancelled: by the subscriber, or because the publisher stops.
	Cancelled Outcome = 4
)

// AppendSnapshot appends a Snapshot frame, which asks for all that is known.
func AppendSnapshot(dst []byte, request uint64) []byte {
	return appendNumber(dst, KindSnapshot, request)
}

// AppendCancel appends a Cancel frame, which ends a snapshot.
func AppendCancel(dst []byte, request uint64) []byte { return appendNumber(dst, KindCancel, request) }

func appendNumber(dst []byte, k Kind, n uint64) []byte {
	dst, mark := begin(dst, k)
	dst = binary.AppendUvarint(dst, n)
	return end(dst, mark)
}

// DecodeRequest reads the body of a Snapshot or Cancel frame.
func DecodeRequest(body []byte) (request uint64, err error) {
	c := cursor{rest: body}
	request = c.uvarint()
	return request, c.err
}

// Position says that a snapshot contains all batches below Next of one process.
type Position struct {
	Name        []byte // of the node
	Incarnation uint64 // of its process
	Next        uint64
}

// AppendSnapshotHead appends a SnapshotHead frame: about how many records will come, and what they
// contain. Positions beyond MaxPositions are left out.
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

// DecodeSnapshotHead reads the body of a SnapshotHead frame. The names in positions point into it.
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

// DecodePage reads the body of a Page frame. The page points into it.
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

// DecodeSnapshotDone reads the body of a SnapshotDone frame. An outcome this version does not know
// is Cancelled.
func DecodeSnapshotDone(body []byte) (request uint64, o Outcome, err error) {
	c := cursor{rest: body}
	request, o = c.uvarint(), Outcome(c.byte())
	if o < Complete || o > Cancelled {
		o = Cancelled
	}
	return request, o, c.err
}
