package wire

import "encoding/binary"

// Subscribe opens a stream.
type Subscribe struct {
	Version     uint8
	Incarnation uint64 // publisher's process that Next belongs to; 0: a joiner
	Next        uint64 // sequence of the first wanted batch
}

// AppendSubscribe appends a Subscribe frame.
func AppendSubscribe(dst []byte, s Subscribe) []byte {
	dst, mark := begin(dst, KindSubscribe)
	dst = append(dst, s.Version)
	dst = binary.AppendUvarint(dst, s.Incarnation)
	dst = binary.AppendUvarint(dst, s.Next)
	return end(dst, mark)
}

// DecodeSubscribe decodes its body.
func DecodeSubscribe(body []byte) (Subscribe, error) {
	c := cursor{rest: body}
	s := Subscribe{Version: c.byte(), Incarnation: c.uvarint(), Next: c.uvarint()}
	if c.err == nil && s.Version == 0 {
		c.fail(ErrMalformed)
	}
	return s, c.err
}

// Start answers Subscribe. Next exceeds the wanted sequence if the journal dropped that batch.
type Start struct {
	Version     uint8
	Incarnation uint64
	Next        uint64 // sequence of the first batch to come
}

// AppendStart appends a Start frame.
func AppendStart(dst []byte, s Start) []byte {
	dst, mark := begin(dst, KindStart)
	dst = append(dst, s.Version)
	dst = binary.AppendUvarint(dst, s.Incarnation)
	dst = binary.AppendUvarint(dst, s.Next)
	return end(dst, mark)
}

// DecodeStart decodes its body.
func DecodeStart(body []byte) (Start, error) {
	c := cursor{rest: body}
	s := Start{Version: c.byte(), Incarnation: c.uvarint(), Next: c.bounded(maxSequence)}
	if c.err == nil && (s.Version == 0 || s.Next == 0) {
		c.fail(ErrMalformed)
	}
	return s, c.err
}

// AppendPing appends a Ping frame; sent is in Unix nanoseconds.
func AppendPing(dst []byte, sent int64) []byte {
	dst, mark := begin(dst, KindPing)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(sent))
	return end(dst, mark)
}

// DecodePing decodes its body.
func DecodePing(body []byte) (sent int64, err error) {
	c := cursor{rest: body}
	sent = int64(c.uint64())
	return sent, c.err
}

// Pong answers Ping, in Unix nanoseconds: Sent on the subscriber's clock, the rest on the
// publisher's.
type Pong struct {
	Sent, Received, Replied int64
}

// AppendPong appends a Pong frame.
func AppendPong(dst []byte, p Pong) []byte {
	dst, mark := begin(dst, KindPong)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Sent))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Received))
	dst = binary.AppendUvarint(dst, uint64(max(0, p.Replied-p.Received)))
	return end(dst, mark)
}

// DecodePong decodes its body.
func DecodePong(body []byte) (Pong, error) {
	c := cursor{rest: body}
	p := Pong{Sent: int64(c.uint64()), Received: int64(c.uint64())}
	p.Replied = p.Received + int64(c.bounded(1<<50)) // thirteen days
	return p, c.err
}
