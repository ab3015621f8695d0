package wire

import "encoding/binary"

// Subscribe opens a stream: what the subscriber has of the publisher already.
type Subscribe struct {
	Version     uint8
	Incarnation uint64 // of the publisher's process whose batches it has; 0: none
	Next        uint64 // sequence after the latest it has of that incarnation; any number, for others may have lied to it
}

// AppendSubscribe appends a Subscribe frame.
func AppendSubscribe(dst []byte, s Subscribe) []byte {
	dst, mark := begin(dst, KindSubscribe)
	dst = append(dst, s.Version)
	dst = binary.AppendUvarint(dst, s.Incarnation)
	dst = binary.AppendUvarint(dst, s.Next)
	return end(dst, mark)
}

// DecodeSubscribe reads the body of a Subscribe frame.
func DecodeSubscribe(body []byte) (Subscribe, error) {
	c := cursor{rest: body}
	s := Subscribe{Version: c.byte(), Incarnation: c.uvarint(), Next: c.uvarint()}
	if c.err == nil && s.Version == 0 {
		c.fail(ErrMalformed)
	}
	return s, c.err
}

// Start answers Subscribe.
type Start struct {
	Version     uint8
	Incarnation uint64 // of the publisher's process
	Next        uint64 // sequence of the first batch that will come
}

// AppendStart appends a Start frame.
func AppendStart(dst []byte, s Start) []byte {
	dst, mark := begin(dst, KindStart)
	dst = append(dst, s.Version)
	dst = binary.AppendUvarint(dst, s.Incarnation)
	dst = binary.AppendUvarint(dst, s.Next)
	return end(dst, mark)
}

// DecodeStart reads the body of a Start frame.
func DecodeStart(body []byte) (Start, error) {
	c := cursor{rest: body}
	s := Start{Version: c.byte(), Incarnation: c.uvarint(), Next: c.bounded(maxSequence)}
	if c.err == nil && (s.Version == 0 || s.Next == 0) {
		c.fail(ErrMalformed)
	}
	return s, c.err
}

// AppendPing appends a Ping frame: the subscriber's clock when it was written, in Unix nanoseconds.
func AppendPing(dst []byte, sent int64) []byte {
	dst, mark := begin(dst, KindPing)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(sent))
	return end(dst, mark)
}

// DecodePing reads the body of a Ping frame.
func DecodePing(body []byte) (sent int64, err error) {
	c := cursor{rest: body}
	sent = int64(c.uint64())
	return sent, c.err
}

// Pong answers Ping. Times are Unix nanoseconds; Sent is the subscriber's own, returned; the others are the publisher's.
type Pong struct {
	Sent, Received, Replied int64
	Next                    uint64 // sequence of the next batch that will come on this stream: all before it were sent
}

// AppendPong appends a Pong frame.
func AppendPong(dst []byte, p Pong) []byte {
	dst, mark := begin(dst, KindPong)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Sent))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Received))
	dst = binary.AppendUvarint(dst, uint64(max(0, p.Replied-p.Received)))
	dst = binary.AppendUvarint(dst, p.Next)
	return end(dst, mark)
}

// DecodePong reads the body of a Pong frame.
func DecodePong(body []byte) (Pong, error) {
	c := cursor{rest: body}
	p := Pong{Sent: int64(c.uint64()), Received: int64(c.uint64())}
	p.Replied = p.Received + int64(c.bounded(1<<50)) // thirteen days
	p.Next = c.bounded(maxSequence)
	return p, c.err
}

// Range asks for batches of one origin again.
type Range struct {
	Request     uint64
	Origin      []byte
	Incarnation uint64
	From        uint64
	Count       uint64 // 1 to MaxRange
}

// AppendRange appends a Range frame.
func AppendRange(dst []byte, r Range) []byte {
	dst, mark := begin(dst, KindRange)
	dst = binary.AppendUvarint(dst, r.Request)
	dst = binary.AppendUvarint(dst, uint64(len(r.Origin)))
	dst = append(dst, r.Origin...)
	dst = binary.AppendUvarint(dst, r.Incarnation)
	dst = binary.AppendUvarint(dst, r.From)
	dst = binary.AppendUvarint(dst, r.Count)
	return end(dst, mark)
}

// DecodeRange reads the body of a Range frame. Origin points into it.
func DecodeRange(body []byte) (Range, error) {
	c := cursor{rest: body}
	r := Range{Request: c.uvarint(), Origin: c.name(), Incarnation: c.uvarint(), From: c.bounded(maxSequence), Count: c.bounded(MaxRange)}
	if c.err == nil && (r.From == 0 || r.Count == 0) {
		c.fail(ErrMalformed)
	}
	return r, c.err
}

// AppendRangeDone appends a RangeDone frame: the sender has sent what it has of the range below next.
func AppendRangeDone(dst []byte, request, next uint64) []byte {
	dst, mark := begin(dst, KindRangeDone)
	dst = binary.AppendUvarint(dst, request)
	dst = binary.AppendUvarint(dst, next)
	return end(dst, mark)
}

// DecodeRangeDone reads the body of a RangeDone frame.
func DecodeRangeDone(body []byte) (request, next uint64, err error) {
	c := cursor{rest: body}
	request, next = c.uvarint(), c.bounded(maxSequence+MaxRange)
	return request, next, c.err
}
