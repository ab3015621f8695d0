package wire

import "encoding/binary"

// Batch is what one process published at one flush: opaque records, immutable once published.
type Batch struct {
	Sequence uint64 // from 1, without holes
	Time     int64  // Unix milliseconds on the publisher's clock; never less than its predecessor's
	Records  int
	Payload  []byte
}

// AppendBody appends the batch without a frame: what a journal keeps and a Batch frame carries.
func (b *Batch) AppendBody(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, b.Sequence)
	dst = binary.AppendUvarint(dst, uint64(b.Time))
	dst = binary.AppendUvarint(dst, uint64(b.Records))
	dst = binary.AppendUvarint(dst, uint64(len(b.Payload)))
	return append(dst, b.Payload...)
}

// DecodeBatch reads what AppendBody wrote. The payload points into body.
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

// maxSequence bounds a sequence, so that arithmetic with it does not overflow.
const maxSequence = 1<<62 - 1

// maxTime bounds a time in milliseconds: the year 10889, and no overflow in arithmetic with it.
const maxTime = 1<<48 - 1

// AppendBatch appends a Batch frame around a body of AppendBody.
func AppendBatch(dst, body []byte) []byte {
	dst = append(dst, byte(KindBatch))
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}
