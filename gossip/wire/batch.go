package wire

import (
	"encoding/binary"
	"hash/fnv"
)

// Batch is news of one origin: opaque records, immutable once published. (origin, incarnation, sequence) names it.
type Batch struct {
	Sequence uint64 // from 1, without holes
	Time     int64  // Unix milliseconds on the origin's clock; never less than its predecessor's
	Records  int
	Payload  []byte
}

// AppendBody appends the batch without a frame: what a journal keeps, and what Batch and Repair frames carry.
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

// Repair is a batch of any origin, sent because it was asked for.
type Repair struct {
	Request     uint64
	Shift       int64 // milliseconds the sender adds to this origin's times to have its own; 0 if it is the origin
	Origin      []byte
	Incarnation uint64
	Body        []byte // of AppendBody
}

// AppendRepair appends a Repair frame.
func AppendRepair(dst []byte, r *Repair) []byte {
	dst, mark := begin(dst, KindRepair)
	dst = binary.AppendUvarint(dst, r.Request)
	dst = binary.AppendVarint(dst, r.Shift)
	dst = binary.AppendUvarint(dst, uint64(len(r.Origin)))
	dst = append(dst, r.Origin...)
	dst = binary.AppendUvarint(dst, r.Incarnation)
	dst = binary.AppendUvarint(dst, uint64(len(r.Body)))
	dst = append(dst, r.Body...)
	return end(dst, mark)
}

// DecodeRepair reads the body of a Repair frame. Origin and Body point into it.
func DecodeRepair(body []byte) (Repair, error) {
	c := cursor{rest: body}
	var r Repair
	r.Request = c.uvarint()
	r.Shift = c.varint()
	r.Origin = c.name()
	r.Incarnation = c.uvarint()
	r.Body = c.bytes(MaxPayload + slack)
	if r.Shift > maxTime || r.Shift < -maxTime {
		c.fail(ErrTooLarge)
	}
	return r, c.err
}

// StreamKey mixes an origin's name and incarnation, once per stream of batches.
func StreamKey(origin string, incarnation uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(origin))
	return mix(h.Sum64() ^ mix(incarnation))
}

// BatchID is the 64-bit name of a batch that digests are made of. It is no defence against a member that wants to
// collide; members are trusted with far more.
func BatchID(stream, sequence uint64) uint64 { return mix(stream + sequence*0x9e3779b97f4a7c15) }

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
