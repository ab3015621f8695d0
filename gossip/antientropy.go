package gossip

import (
	"time"

	"grapevine/gossip/wire"
)

// maxRunsPerDigest bounds what one exchange lists: three times the gaps that are looked for at a time. What is left out differs
// the next time, too.
const maxRunsPerDigest = 3 * maxWants

// exchange is the comparison of digests that a session has asked for. Guarded by session.mu.
type exchange struct {
	request uint64 // 0: none
	runs    int
}

// askDigest sends the digests of this node's sealed buckets to a peer, which answers with the batches of those that
// differ from its own. Each side asks for itself, so what is learned goes one way.
func (s *session) askDigest(now time.Time) {
	from, through, buckets := s.f.journal.digest(s.f.wall(now).UnixMilli())
	if through < from {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exchange.request != 0 {
		return // a stream loses nothing: the answer is waiting for its turn
	}
	d := wire.Digest{Request: s.requests.Add(1), From: uint64(from), Through: uint64(through), Buckets: buckets}
	if s.sendLocked(wire.KindDigest, func(b []byte) []byte { return wire.AppendDigest(b, &d) }) {
		s.exchange = exchange{request: d.Request}
	}
}

// compare finds the buckets in which this node's digest differs from a subscriber's.
func (f *Fleet) compare(theirs *wire.Digest) *digestJob {
	j := &digestJob{request: theirs.Request}
	from, through, mine := f.journal.digest(f.wall(time.Now()).UnixMilli())
	first, last := max(from, int64(theirs.From)), min(through, int64(theirs.Through))
	if first > last {
		return j
	}
	j.compared = uint64(last - first + 1)
	other := make(map[uint64]wire.Bucket, len(theirs.Buckets))
	for _, b := range theirs.Buckets {
		other[b.Number] = b
	}
	for _, b := range mine {
		if n := int64(b.Number); n < first || n > last {
			continue
		}
		if other[b.Number] != b {
			j.buckets = append(j.buckets, int64(b.Number))
		}
		delete(other, b.Number)
	}
	j.differ = uint64(len(j.buckets))
	for n := range other {
		if int64(n) >= first && int64(n) <= last {
			j.differ++ // it has what this node has not; it will be asked on the other stream
		}
	}
	return j
}

// digestJob answers a Digest.
type digestJob struct {
	request          uint64
	compared, differ uint64
	buckets          []int64 // to be listed yet, oldest first
	bucket           int64   // the one being listed
	runs             []wire.Run
	listed           int // of all buckets so far, runs included
}

func (j *digestJob) fill(f *Fleet, dst []byte, room int) (out []byte, done bool) {
	start := len(dst)
	for len(dst)-start < room {
		if len(j.runs) == 0 {
			if len(j.buckets) == 0 {
				break
			}
			last := len(j.buckets) - 1 // the newest first
			j.bucket, j.buckets = j.buckets[last], j.buckets[:last]
			j.runs = f.journal.runs(j.bucket)
			if left := maxRunsPerDigest - j.listed; len(j.runs) >= left {
				j.runs, j.buckets = j.runs[:left], nil
			}
			j.listed += len(j.runs)
			continue
		}
		dst, j.runs = wire.AppendRuns(dst, j.request, uint64(j.bucket), j.runs)
	}
	f.counts.sent[wire.KindRuns].Add(uint64(len(dst) - start))
	if len(j.runs)+len(j.buckets) > 0 {
		return dst, false
	}
	n := len(dst)
	dst = wire.AppendDigestDone(dst, j.request, j.compared, j.differ)
	f.counts.sent[wire.KindDigestDone].Add(uint64(len(dst) - n))
	return dst, true
}

// takeRuns looks up what a peer has in a bucket, and notes what of it is missing here.
func (s *session) takeRuns(body []byte, now time.Time) error {
	request, err := wire.DecodeRequest(body)
	if err != nil {
		return err
	}
	if current, err := s.answers(request); err != nil || !current {
		return err
	}
	runs := 0
	_, err = wire.DecodeRuns(body, func(_ uint64, r wire.Run) {
		runs++
		id := streamID{string(r.Origin), r.Incarnation}
		if id.origin == s.f.self.origin && id.incarnation >= s.f.self.incarnation {
			return // nobody knows better what this node has said
		}
		for _, g := range s.f.journal.gaps(id, r.From, r.Count, splitGaps) {
			s.f.found(id, g, s.p.name, now)
		}
	})
	if err != nil {
		return err
	}
	s.f.repairs.nudge()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exchange.runs += runs; s.exchange.runs > maxRunsPerDigest {
		return errTooMany
	}
	return nil
}

// answers reports whether an answer belongs to the exchange that is under way; one to an earlier exchange is late.
func (s *session) answers(request uint64) (current bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if request == 0 || request > s.requests.Load() {
		return false, errUnexpected
	}
	return request == s.exchange.request, nil
}

// found notes batches that are missing, as a jump in a sequence or a digest has shown.
func (f *Fleet) found(id streamID, g span, hint string, now time.Time) {
	noted, beyond := f.miss(id, g, hint, now)
	f.counts.gaps.Add(noted + beyond)
	if p := f.peer(id.origin); p != nil {
		p.gaps.Add(noted + beyond)
	}
	if beyond > 0 {
		f.lost(id.origin, beyond)
	}
}

// digestDone takes the end of an exchange.
func (s *session) digestDone(body []byte) error {
	request, _, differ, err := wire.DecodeDigestDone(body)
	if err != nil {
		return err
	}
	if current, err := s.answers(request); err != nil || !current {
		return err
	}
	s.mu.Lock()
	s.exchange = exchange{}
	s.mu.Unlock()
	s.f.counts.digests.Add(1)
	s.f.counts.divergence.Store(int64(differ))
	if differ > 0 {
		s.f.counts.divergent.Add(1)
	}
	return nil
}
