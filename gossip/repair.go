package gossip

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"grapevine/gossip/wire"
)

const (
	// repairInterval is how often gaps are looked at. A gap is at least that old before it is asked for, so that batches
	// which merely overtook each other are not sent twice.
	repairInterval = 100 * time.Millisecond
	// maxWants bounds the gaps that are being repaired. More are left to the digests.
	maxWants = 4096
	// maxGap bounds the batches one jump of a sequence is believed to have lost: the whole of what a journal keeps of a node
	// that flushes every 50 ms. Of more, the latest are asked for.
	maxGap = 16 << 10
	// rangesPerPeer and rangesAtOnce bound the requests under way, so that a repair after a partition neither floods the peer that
	// answers nor this node.
	rangesPerPeer = 4
	rangesAtOnce  = 64
	// rangeTimeout is how long a peer may send nothing of what it was asked for before others are asked for it.
	rangeTimeout = 2 * time.Second
	// answerTimeout is when nothing more is expected of a peer that sends nothing of what it was asked for.
	answerTimeout = 30 * time.Second
	// maxRounds is how often everybody is asked before a batch is given up. A digest may bring it back.
	maxRounds = 3
	// splitGaps is into how many requests what remains of a range is split; what lies between is then sent once more.
	splitGaps = 8
)

// want is a run of batches this node lacks.
type want struct {
	id       streamID
	from     uint64
	count    uint64
	hint     string   // a peer that has them
	refused  []string // peers that were asked in this round and did not have all
	round    int
	notUntil time.Time

	// While it is asked for.
	session *session
	request uint64
}

// ask is a Range that its peer has not answered to the end. It outlives the peer's slowness: what comes late is taken, and
// nothing more is asked of a peer that has as much to answer as it may. Guarded by repairs.mu.
type ask struct {
	id    streamID
	span  span
	left  uint64 // batches that may come yet
	owner *want  // nil: others are asked by now
}

// repairs are the gaps this node knows of. Safe for concurrent use.
type repairs struct {
	mu    sync.Mutex // also guards session.asked
	wants map[streamID][]*want
	count int
	asked int // requests under way
	wake  chan struct{}
}

func (r *repairs) init() {
	r.wants, r.wake = map[streamID][]*want{}, make(chan struct{}, 1)
}

// miss notes that batches of a stream did not come; hint may name a peer that has them. Noted is how many are looked
// for now and were not before, beyond how many are too many to be looked for.
func (f *Fleet) miss(id streamID, g span, hint string, now time.Time) (noted, beyond uint64) {
	if g.count > maxGap {
		beyond = g.count - maxGap
		g = span{g.from + beyond, maxGap}
	}
	r := &f.repairs
	r.mu.Lock()
	defer r.mu.Unlock()
	for g.count > 0 {
		n := min(g.count, wire.MaxRange)
		if w := r.coveringLocked(id, g.from, n); w != nil {
			if hint != "" {
				w.hint = hint
			}
		} else if r.count >= maxWants {
			return noted, beyond + g.count
		} else {
			r.addLocked(&want{id: id, from: g.from, count: n, hint: hint, notUntil: now.Add(repairInterval / 2)})
			noted += n
		}
		g.from, g.count = g.from+n, g.count-n
	}
	return noted, beyond
}

// findHoles notes what is missing of a stream below its highest known batch. Others may have had only later ones to repair it
// with while there was no stream from its origin, which goes on after the highest.
func (f *Fleet) findHoles(id streamID, now time.Time) {
	floor, next, ok := f.journal.position(id)
	if !ok || floor == 0 {
		return // only some of it was ever looked for
	}
	if next-floor > maxGap {
		floor = next - maxGap
	}
	for _, g := range f.journal.gaps(id, floor, next-floor, splitGaps) {
		f.found(id, g, "", now)
	}
}

func (r *repairs) coveringLocked(id streamID, from, count uint64) *want {
	for _, w := range r.wants[id] {
		if w.from <= from && from+count <= w.from+w.count {
			return w
		}
	}
	return nil
}

func (r *repairs) addLocked(w *want) {
	r.wants[w.id] = append(r.wants[w.id], w)
	r.count++
}

func (r *repairs) removeLocked(w *want) {
	list := r.wants[w.id]
	if i := slices.Index(list, w); i >= 0 {
		list[i] = list[len(list)-1]
		list[len(list)-1] = nil
		r.wants[w.id] = list[:len(list)-1]
		r.count--
	}
	if len(r.wants[w.id]) == 0 {
		delete(r.wants, w.id)
	}
}

// nudge makes the next look at the gaps come at once.
func (r *repairs) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// repair asks for what is missing until the fleet ends.
func (f *Fleet) repair() {
	tick := time.NewTicker(repairInterval)
	defer tick.Stop()
	for {
		if f.repairs.pending() {
			f.lookAtGaps(time.Now())
		}
		select {
		case <-tick.C:
		case <-f.repairs.wake:
		case <-f.ctx.Done():
			return
		}
	}
}

func (r *repairs) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count > 0
}

// lookAtGaps takes back requests that were not answered, forgets gaps that have closed, and asks for the others.
func (f *Fleet) lookAtGaps(now time.Time) {
	open := f.sessions()
	rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	var given []*want
	r := &f.repairs
	r.mu.Lock()
	var all []*want
	for _, list := range r.wants {
		all = append(all, list...)
	}
	for _, w := range all {
		if w.session != nil {
			if !w.session.stuckLocked(now) && !w.session.over() {
				continue
			}
			r.returnLocked(w)
		}
		if r.asked >= rangesAtOnce || now.Before(w.notUntil) {
			continue
		}
		gaps := f.journal.gaps(w.id, w.from, w.count, splitGaps)
		if len(gaps) == 0 {
			r.removeLocked(w)
			continue
		}
		r.splitLocked(w, gaps)
		if !f.askLocked(w, open, now) {
			given = append(given, w)
		}
	}
	r.mu.Unlock()
	for _, w := range given {
		f.giveUp(w)
	}
}

// splitLocked reduces a want to what is still missing. Pieces after the first are asked for at the next look.
func (r *repairs) splitLocked(w *want, gaps []span) {
	end := w.from + w.count
	w.from, w.count = gaps[0].from, gaps[0].count
	for _, g := range gaps[1:] {
		if r.count >= maxWants {
			w.count = end - w.from // rather one request for all that lies between
			return
		}
		r.addLocked(w.part(g.from, g.count))
	}
}

// part is a want of its own for a part of a want that is not asked for at the moment.
func (w *want) part(from, count uint64) *want {
	p := *w
	p.from, p.count, p.refused = from, count, slices.Clone(w.refused)
	return &p
}

// askLocked sends a want to the best peer that was not asked yet: the one that is known to have it, the origin, any.
// It returns false, and the want is forgotten, if everybody was asked often enough.
func (f *Fleet) askLocked(w *want, open []*session, now time.Time) bool {
	var best *session
	rank, waiting := 0, false
	for _, s := range open {
		switch {
		case slices.Contains(w.refused, s.p.name), s.stuckLocked(now):
		case len(s.asked) >= rangesPerPeer:
			waiting = true
		case s.p.name == w.hint:
			best, rank = s, 3
		case s.p.name == w.id.origin && rank < 2:
			best, rank = s, 2
		case rank < 1:
			best, rank = s, 1
		}
	}
	if best == nil && !waiting && !w.owedLocked(open, now) {
		return f.repairs.nextRoundLocked(w, now)
	}
	if best == nil || !best.askRange(w, now) {
		w.notUntil = now.Add(repairInterval)
		return true
	}
	f.repairs.asked++
	f.counts.repairRequests.Add(1)
	return true
}

// nextRoundLocked decides what becomes of a want that nobody is left to be asked for. A round in which nobody was asked is
// none: who is cut off has not lost what it will be able to ask for.
func (r *repairs) nextRoundLocked(w *want, now time.Time) bool {
	if len(w.refused) == 0 {
		w.notUntil = now.Add(rangeTimeout / 2)
		return true
	}
	w.round++
	w.refused = w.refused[:0]
	w.notUntil = now.Add(repairInterval << min(w.round+1, 5))
	if w.round < maxRounds {
		return true
	}
	r.removeLocked(w)
	return false
}

// giveUp counts what of a want is missing for good.
func (f *Fleet) giveUp(w *want) {
	missing := uint64(0)
	for _, g := range f.journal.gaps(w.id, w.from, w.count, splitGaps) {
		missing += g.count
	}
	f.lost(w.id.origin, missing)
}

// lost counts batches that are not looked for any more. What they said is in a snapshot, of their origin or of who had
// them from it.
func (f *Fleet) lost(origin string, batches uint64) {
	if batches == 0 {
		return
	}
	f.counts.lostBatches.Add(batches)
	f.relearn.Store(&origin)
	if p := f.peer(origin); p != nil {
		p.lost.Add(batches)
	}
}

// stuckLocked reports whether the peer owes an answer and has sent nothing of it for too long. Requests are answered in
// order, so as long as one is, the others are not late. repairs.mu is held.
func (s *session) stuckLocked(now time.Time) bool {
	return len(s.asked) > 0 && now.Sub(s.answered) >= rangeTimeout
}

// owedLocked reports whether a peer that was slow is still expected to send what is wanted. repairs.mu is held.
func (w *want) owedLocked(open []*session, now time.Time) bool {
	for _, s := range open {
		if now.Sub(s.answered) >= answerTimeout {
			continue
		}
		for _, a := range s.asked {
			if a.id == w.id && a.span.from <= w.from && w.from-a.span.from < a.span.count {
				return true
			}
		}
	}
	return false
}

// returnLocked stops waiting for the answer to a want; the peer is not asked again in this round.
func (r *repairs) returnLocked(w *want) {
	if a := w.session.asked[w.request]; a != nil {
		a.owner = nil
	}
	r.asked--
	w.refused = append(w.refused, w.session.p.name)
	if w.hint == w.session.p.name {
		w.hint = ""
	}
	w.session, w.notUntil = nil, time.Time{}
}

// rangeDone takes the end of an answer: the peer has sent all it has below next. If others were asked meanwhile, what it has
// not sent is their affair.
func (f *Fleet) rangeDone(s *session, request, next uint64, now time.Time) {
	r := &f.repairs
	r.mu.Lock()
	defer r.mu.Unlock()
	a := s.asked[request]
	if a == nil {
		return
	}
	s.answered = now
	delete(s.asked, request)
	r.nudge()
	w := a.owner
	if w == nil {
		return
	}
	if end := w.from + w.count; next > w.from && next < end && r.count < maxWants {
		// An answer has a bound. What it did not come to may be asked of the same peer.
		rest := w.part(next, end-next)
		rest.session = nil
		r.addLocked(rest)
		w.count = next - w.from
	}
	r.returnLocked(w)
}

// answer is what a repair is to this node.
type answer uint8

const (
	wanted   answer = iota
	late            // asked for, and the answer has ended
	intruder        // never asked for
)

// judge says whether a repair is one that the session was asked for. No more are than were asked for, so that a peer cannot
// keep a request to itself by answering it for ever.
func (f *Fleet) judge(s *session, rep *wire.Repair, sequence uint64, now time.Time) answer {
	r := &f.repairs
	r.mu.Lock()
	defer r.mu.Unlock()
	a := s.asked[rep.Request]
	switch {
	case rep.Request == 0 || rep.Request > s.requests.Load():
		return intruder
	case a == nil:
		return late
	case a.id.incarnation != rep.Incarnation, a.id.origin != string(rep.Origin), sequence < a.span.from, sequence-a.span.from >= a.span.count, a.left == 0:
		return intruder
	}
	a.left--
	s.answered = now
	return wanted
}

// rangeBytes bounds the answer to one Range; the rest is asked for again, so that a long repair can change its source.
const rangeBytes = 256 << 10

// rangeJob answers a Range.
type rangeJob struct {
	request       uint64
	id            streamID
	next, through uint64
	sent          int
}

func (j *rangeJob) fill(f *Fleet, dst []byte, room int) (out []byte, done bool) {
	start := len(dst)
	// Times go out as they came; the shift tells what they are on this node's clock.
	rep := wire.Repair{Request: j.request, Origin: []byte(j.id.origin), Incarnation: j.id.incarnation, Shift: f.journal.shift(j.id)}
	served := uint64(0)
	j.next = f.journal.read(j.id, j.next, j.through, func(_ uint64, body []byte) bool {
		if len(dst)-start >= room || j.sent+len(dst)-start >= rangeBytes {
			return false
		}
		rep.Body = body
		dst = wire.AppendRepair(dst, &rep)
		served++
		return true
	})
	j.sent += len(dst) - start
	f.counts.repairsServed.Add(served)
	f.counts.sent[wire.KindRepair].Add(uint64(len(dst) - start))
	if j.next < j.through && j.sent < rangeBytes {
		return dst, false
	}
	n := len(dst)
	dst = wire.AppendRangeDone(dst, j.request, j.next)
	f.counts.sent[wire.KindRangeDone].Add(uint64(len(dst) - n))
	return dst, true
}
