package events

const (
	// manyGaps within fewGood batches show that a stream loses batches again and again. What it tells is then worse than nothing: a block
	// whose store is lost counts as gone.
	manyGaps = 3
	fewGood  = 256
)

// Losses finds out whether a stream loses batches again and again. The zero value is ready for use.
type Losses struct {
	batches uint64
	gaps    [manyGaps]uint64 // batches before the last gaps, latest first
	n       int              // of these
}

// Batch counts one that came.
func (q *Losses) Batch() { q.batches++ }

// Gap counts batches that will not come.
func (q *Losses) Gap() {
	copy(q.gaps[1:], q.gaps[:])
	q.gaps[0], q.n = q.batches, min(q.n+1, manyGaps)
}

// Many reports whether the stream is not to be used.
func (q *Losses) Many() bool { return q.n == manyGaps && q.batches-q.gaps[manyGaps-1] < fewGood }
