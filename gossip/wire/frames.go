package wire

import "encoding/binary"

// Resume names a batch of a publisher's process: in Subscribe the first wanted, in Start the first
// to come.
type Resume struct {
	Version     uint8
	Incarnation uint64 // in Subscribe, 0 means a joiner
	Next        uint64 // sequence
}

// AppendResume appends a frame of kind KindSubscribe or KindStart.
func AppendResume(dst []byte, k Kind, r Resume) []byte {
	dst, mark := begin(dst, k)
	dst = append(dst, r.Version)
	return end(uvarints(dst, r.Incarnation, r.Next), mark)
}

// DecodeResume decodes the body of either.
func DecodeResume(body []byte) (Resume, error) {
	c := cursor{rest: body}
	r := Resume{Version: c.byte(), Incarnation: c.uvarint(), Next: c.bounded(maxSequence)}
	if c.err == nil && r.Version == 0 {
		c.fail("version")
	}
	return r, c.err
}

// AppendPing appends a Ping frame; sent is in Unix nanoseconds.
func AppendPing(dst []byte, sent int64) []byte {
	dst, mark := begin(dst, KindPing)
	return end(binary.LittleEndian.AppendUint64(dst, uint64(sent)), mark)
}

// DecodePing decodes its body.
func DecodePing(body []byte) (sent int64, err error) {
	c := cursor{rest: body}
	sent = int64(c.uint64())
	return sent, c.err
}

// Pong is in Unix nanoseconds: Sent on the subscriber's clock, the rest on the publisher's.
type Pong struct {
	Sent, Received, Replied int64
}

// AppendPong appends a Pong frame.
func AppendPong(dst []byte, p Pong) []byte {
	dst, mark := begin(dst, KindPong)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Sent))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Received))
	return end(uvarints(dst, uint64(max(0, p.Replied-p.Received))), mark)
}

// DecodePong decodes its body.
func DecodePong(body []byte) (Pong, error) {
	c := cursor{rest: body}
	p := Pong{Sent: int64(c.uint64()), Received: int64(c.uint64())}
	p.Replied = p.Received + int64(c.bounded(1<<50)) // thirteen days
	return p, c.err
}

// Batch is the news of one process at one flush; immutable once published.
type Batch struct {
	Sequence uint64 // from 1, consecutive
	Time     int64  // Unix ms on the publisher's clock, never decreasing
	Records  int
	Payload  []byte
}

// AppendBody appends the batch without a frame.
func (b *Batch) AppendBody(dst []byte) []byte {
	return blob(uvarints(dst, b.Sequence, uint64(b.Time), uint64(b.Records)), b.Payload)
}

// AppendBatch appends a Batch frame around a body from AppendBody.
func AppendBatch(dst, body []byte) []byte {
	dst, mark := begin(dst, KindBatch)
	return end(append(dst, body...), mark)
}

// DecodeBatch decodes AppendBody's bytes.
func DecodeBatch(body []byte) (Batch, error) {
	c := cursor{rest: body}
	b := Batch{
		Sequence: c.bounded(maxSequence), Time: int64(c.bounded(maxTime)),
		Records: int(c.bounded(MaxRecords)), Payload: c.bytes(MaxPayload),
	}
	if c.err == nil && b.Sequence == 0 {
		c.fail("sequence")
	}
	return b, c.err
}

// Load is one node's outstanding work on one backend.
type Load struct {
	Backend       uint32 // hash of the backend's name
	PrefillTokens uint32 // prompt tokens not yet computed
	Active        uint32 // requests
}

// Usage is what one node's requests use of one client's limits.
type Usage struct {
	Client   uint32 // hash of the client's name
	Tokens   uint32 // admitted, less what has leaked
	InFlight uint32 // requests
}

// Figure is a number that one node measured, for its peers' operators. Its meaning follows from its key.
type Figure struct {
	Key       uint32
	Low, High uint32 // halves of the number
}

// Entry is an entry of a sparse vector: a key and two numbers, of which unlisted keys have 0.
type Entry[E any] interface {
	comparable
	Numbers() (key, first, second uint32)
	Of(key, first, second uint32) E // a new entry
}

func (l Load) Numbers() (key, first, second uint32)  { return l.Backend, l.PrefillTokens, l.Active }
func (Load) Of(key, first, second uint32) Load       { return Load{key, first, second} }
func (u Usage) Numbers() (key, first, second uint32) { return u.Client, u.Tokens, u.InFlight }
func (Usage) Of(key, first, second uint32) Usage     { return Usage{key, first, second} }

func (f Figure) Numbers() (key, first, second uint32) { return f.Key, f.Low, f.High }
func (Figure) Of(key, first, second uint32) Figure    { return Figure{key, first, second} }

// loadFull marks a whole vector.
const loadFull = 1 << 0

// AppendLoad appends a Load frame with at most MaxLoads entries; time is in Unix milliseconds.
func AppendLoad(dst []byte, time int64, full bool, loads []Load) []byte {
	return appendVector(dst, KindLoad, time, full, loads)
}

// AppendUsage is AppendLoad for a Usage frame.
func AppendUsage(dst []byte, time int64, full bool, uses []Usage) []byte {
	return appendVector(dst, KindUsage, time, full, uses)
}

// AppendFigures is AppendLoad for a Figures frame.
func AppendFigures(dst []byte, time int64, full bool, figures []Figure) []byte {
	return appendVector(dst, KindFigures, time, full, figures)
}

func appendVector[E Entry[E]](dst []byte, k Kind, time int64, full bool, entries []E) []byte {
	entries = entries[:min(len(entries), MaxLoads)]
	dst, mark := begin(dst, k)
	var flags byte
	if full {
		flags |= loadFull
	}
	dst = uvarints(append(dst, flags), uint64(time), uint64(len(entries)))
	for _, e := range entries {
		key, first, second := e.Numbers()
		dst = binary.LittleEndian.AppendUint32(dst, key)
		dst = uvarints(dst, uint64(first), uint64(second))
	}
	return end(dst, mark)
}

// DecodeLoad appends a Load frame's entries to dst.
func DecodeLoad(dst []Load, body []byte) (loads []Load, time int64, full bool, err error) {
	return decodeVector(dst, body)
}

// DecodeUsage is DecodeLoad for a Usage frame.
func DecodeUsage(dst []Usage, body []byte) (uses []Usage, time int64, full bool, err error) {
	return decodeVector(dst, body)
}

// DecodeFigures is DecodeLoad for a Figures frame.
func DecodeFigures(dst []Figure, body []byte) (figures []Figure, time int64, full bool, err error) {
	return decodeVector(dst, body)
}

func decodeVector[E Entry[E]](dst []E, body []byte) (entries []E, time int64, full bool, err error) {
	var e E
	c := cursor{rest: body}
	full = c.byte()&loadFull != 0
	time = int64(c.bounded(maxTime))
	for n := c.bounded(MaxLoads); n > 0 && c.err == nil; n-- {
		dst = append(dst, e.Of(c.uint32(), uint32(c.bounded(1<<32-1)), uint32(c.bounded(1<<32-1))))
	}
	return dst, time, full, c.err
}

// AppendState appends a State frame; time is in Unix milliseconds.
func AppendState(dst []byte, time int64, state []byte) []byte {
	dst, mark := begin(dst, KindState)
	return end(blob(uvarints(dst, uint64(time)), state), mark)
}

// DecodeState decodes its body.
func DecodeState(body []byte) (time int64, state []byte, err error) {
	c := cursor{rest: body}
	time, state = int64(c.bounded(maxTime)), c.bytes(MaxState)
	return time, state, c.err
}

// AppendClaims appends a Claims frame; time is in Unix milliseconds.
func AppendClaims(dst []byte, time int64, claims []byte) []byte {
	dst, mark := begin(dst, KindClaims)
	return end(blob(uvarints(dst, uint64(time)), claims), mark)
}

// DecodeClaims decodes its body.
func DecodeClaims(body []byte) (time int64, claims []byte, err error) {
	c := cursor{rest: body}
	time, claims = int64(c.bounded(maxTime)), c.bytes(MaxClaims)
	return time, claims, c.err
}

// Outcome is how a snapshot ended.
type Outcome uint8

const (
	Complete  Outcome = 1
	Cold      Outcome = 2 // the publisher is a joiner itself
	Busy      Outcome = 3 // the publisher serves its limit, or is incomplete itself
	Cancelled Outcome = 4 // the subscriber cancelled or timed out, or the publisher stops
)

// AppendRequest appends a frame of kind KindSnapshot or KindCancel.
func AppendRequest(dst []byte, k Kind, request uint64) []byte {
	dst, mark := begin(dst, k)
	return end(uvarints(dst, request), mark)
}

// DecodeRequest decodes the number that begins every snapshot frame's body.
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
	dst = uvarints(dst, request, records, uint64(len(positions)))
	for i := range positions {
		p := &positions[i]
		dst = uvarints(blob(dst, p.Name), p.Incarnation, p.Next)
	}
	return end(dst, mark)
}

// DecodeSnapshotHead decodes its body.
func DecodeSnapshotHead(body []byte) (request, records uint64, positions []Position, err error) {
	c := cursor{rest: body}
	request, records = c.uvarint(), c.bounded(1<<48)
	for n := c.bounded(MaxPositions); n > 0 && c.err == nil; n-- {
		positions = append(positions, Position{c.name(), c.uvarint(), c.bounded(maxSequence)})
	}
	return request, records, positions, c.err
}

// AppendPage appends a Page frame.
func AppendPage(dst []byte, request uint64, records int, page []byte) []byte {
	dst, mark := begin(dst, KindPage)
	return end(blob(uvarints(dst, request, uint64(records)), page), mark)
}

// DecodePage decodes its body.
func DecodePage(body []byte) (request uint64, records int, page []byte, err error) {
	c := cursor{rest: body}
	request, records, page = c.uvarint(), int(c.bounded(MaxRecords)), c.bytes(MaxPage)
	return request, records, page, c.err
}

// AppendSnapshotDone appends a SnapshotDone frame.
func AppendSnapshotDone(dst []byte, request uint64, o Outcome) []byte {
	dst, mark := begin(dst, KindSnapshotDone)
	return end(append(uvarints(dst, request), byte(o)), mark)
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
