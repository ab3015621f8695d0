package wire

import "encoding/binary"

// Batch is the news of one process at one flush; immutable once published.
type Batch struct {
	Sequence uint64 // from 1, consecutive
	Time     int64  // Unix ms on the publisher's clock, never decreasing
	Records  int
	Payload  []byte
}

// AppendBody appends the batch without a frame.
func (b *Batch) AppendBody(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, b.Sequence)
	dst = binary.AppendUvarint(dst, uint64(b.Time))
	dst = binary.AppendUvarint(dst, uint64(b.Records))
	dst = binary.AppendUvarint(dst, uint64(len(b.Payload)))
	return append(dst, b.Payload...)
}

// DecodeBatch decodes AppendBody's bytes.
func DecodeBatch(body []byte) (Batch, error) {
	c := cursor{rest: body}
	var b Batch
	b.Sequence = c.bounded(maxSequence)
	b.Time = int64(c.bounded(maxTime))
	b.Records = int(c.bounded(MaxRecords))
	b.Payload = c.bytes(MaxPayload)
	if c.err == nil && b.Sequence == 0 {
		c.fail(ErrMalformed)
	}
	return b, c.err
}

// maxSequence prevents overflow in arithmetic with sequences.
const maxSequence = 1<<62 - 1

// maxTime is in milliseconds: the year 10889, without overflow.
const maxTime = 1<<48 - 1

// AppendBatch appends a Batch frame around a body from AppendBody.
func AppendBatch(dst, body []byte) []byte {
	dst = append(dst, byte(KindBatch))
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}
