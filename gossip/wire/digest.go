package wire

import "encoding/binary"

// BucketMillis is the length of a bucket: a batch belongs to bucket Time / BucketMillis.
const BucketMillis = 10_000

// Bucket is the digest of the batches of one bucket.
type Bucket struct {
	Number uint64 // Unix milliseconds / BucketMillis
	Count  uint64
	XOR    uint64 // of BatchID
}

// Digest says what the subscriber has in the buckets From to Through, both included, all sealed: those not listed are
// empty. Buckets are in ascending order.
type Digest struct {
	Request       uint64
	From, Through uint64
	Buckets       []Bucket
}

// AppendDigest appends a Digest frame.
func AppendDigest(dst []byte, d *Digest) []byte {
	dst, mark := begin(dst, KindDigest)
	dst = binary.AppendUvarint(dst, d.Request)
	dst = binary.AppendUvarint(dst, d.From)
	dst = binary.AppendUvarint(dst, d.Through-d.From)
	dst = binary.AppendUvarint(dst, uint64(len(d.Buckets)))
	last := d.From
	for _, b := range d.Buckets {
		dst = binary.AppendUvarint(dst, b.Number-last)
		dst = binary.AppendUvarint(dst, b.Count)
		dst = binary.LittleEndian.AppendUint64(dst, b.XOR)
		last = b.Number
	}
	return end(dst, mark)
}

// DecodeDigest reads the body of a Digest frame into d, using d's memory again.
func DecodeDigest(d *Digest, body []byte) error {
	c := cursor{rest: body}
	d.Buckets = d.Buckets[:0]
	d.Request = c.uvarint()
	d.From = c.bounded(maxTime)
	d.Through = d.From + c.bounded(MaxBuckets-1)
	n := c.bounded(MaxBuckets)
	last, first := d.From, true
	for ; n > 0 && c.err == nil; n-- {
		step := c.bounded(MaxBuckets)
		b := Bucket{Number: last + step, Count: c.uvarint(), XOR: c.uint64()}
		if c.err == nil && (b.Number > d.Through || step == 0 && !first) {
			c.fail(ErrMalformed)
		}
		if c.err == nil {
			d.Buckets = append(d.Buckets, b)
		}
		last, first = b.Number, false
	}
	return c.err
}

// AppendDigestDone appends a DigestDone frame: how many buckets were compared and how many of them differ.
func AppendDigestDone(dst []byte, request, compared, differ uint64) []byte {
	dst, mark := begin(dst, KindDigestDone)
	dst = binary.AppendUvarint(dst, request)
	dst = binary.AppendUvarint(dst, compared)
	dst = binary.AppendUvarint(dst, differ)
	return end(dst, mark)
}

// DecodeDigestDone reads the body of a DigestDone frame.
func DecodeDigestDone(body []byte) (request, compared, differ uint64, err error) {
	c := cursor{rest: body}
	request, compared, differ = c.uvarint(), c.bounded(MaxBuckets), c.bounded(MaxBuckets)
	return request, compared, differ, c.err
}

// Run is a run of consecutive batches of one stream.
type Run struct {
	Origin      []byte
	Incarnation uint64
	From        uint64
	Count       uint64
}

// MaxRun bounds the batches of one run: ten seconds of one batch per millisecond, and some.
const MaxRun = 16 << 10

// AppendRuns appends a Runs frame with as many of runs as fit, at least one, and returns the rest. All are batches of
// one bucket. Runs of one stream stand together, so that its name is sent once.
func AppendRuns(dst []byte, request, bucket uint64, runs []Run) (out []byte, rest []Run) {
	const room = 64 << 10
	dst, mark := begin(dst, KindRuns)
	dst = binary.AppendUvarint(dst, request)
	dst = binary.AppendUvarint(dst, bucket)
	count := len(dst)
	dst = append(dst, 0, 0)
	var origin []byte
	var incarnation uint64
	n := 0
	for ; len(runs) > 0 && n < MaxRuns && len(dst)-mark < room-MaxName-64; n++ {
		r := &runs[0]
		if n > 0 && r.Incarnation == incarnation && string(r.Origin) == string(origin) {
			dst = binary.AppendUvarint(dst, 0)
		} else {
			dst = binary.AppendUvarint(dst, uint64(len(r.Origin)))
			dst = append(dst, r.Origin...)
			dst = binary.AppendUvarint(dst, r.Incarnation)
		}
		origin, incarnation = r.Origin, r.Incarnation
		dst = binary.AppendUvarint(dst, r.From)
		dst = binary.AppendUvarint(dst, r.Count)
		runs = runs[1:]
	}
	binary.LittleEndian.PutUint16(dst[count:], uint16(n))
	return end(dst, mark), runs
}

// DecodeRuns reads the body of a Runs frame, calling each for every run; its origin points into body.
func DecodeRuns(body []byte, each func(bucket uint64, r Run)) (request uint64, err error) {
	c := cursor{rest: body}
	request = c.uvarint()
	bucket := c.bounded(maxTime)
	n := int(c.uint16())
	if n > MaxRuns {
		c.fail(ErrTooLarge)
	}
	var r Run
	for ; n > 0 && c.err == nil; n-- {
		if name := c.bytes(MaxName); len(name) > 0 {
			r.Origin = name
			r.Incarnation = c.uvarint()
		}
		r.From, r.Count = c.bounded(maxSequence), c.bounded(MaxRun)
		if c.err == nil && (r.From == 0 || r.Count == 0 || !validName(r.Origin)) {
			c.fail(ErrMalformed)
		}
		if c.err == nil {
			each(bucket, r)
		}
	}
	return request, c.err
}
