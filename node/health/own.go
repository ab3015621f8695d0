package health

import (
	"cmp"
	"slices"
	"time"
)

// own is what this node has found out about an engine itself.
type own struct {
	due      time.Time // of the next probe
	underway bool
	began    time.Time // of the last probe
	probed   time.Time // when the last probe ended; zero none
	fails    int       // probes in a row
	timeouts int       // of these, were taken and not answered
	goods    int
	bad      bool // by probes
	badWhy   Reason

	strikes    int // own requests that failed, since one was answered
	strikeWhy  Reason
	struckAt   time.Time
	passive    bool // failing by requests
	answeredAt time.Time

	since time.Time // of failing or, while it is not, of being well
}

func (o *own) failing() bool { return o.bad || o.passive }

func (o *own) reason() Reason {
	switch {
	case o.bad:
		return o.badWhy
	case o.passive:
		return o.strikeWhy
	}
	return NoReason
}

// hurry moves the next probe forward to now, but not on the heels of the last.
func (o *own) hurry(now time.Time) bool {
	at := now
	if soonest := o.began.Add(retryAfter); at.Before(soonest) {
		at = soonest
	}
	if o.underway || !at.Before(o.due) {
		return false
	}
	o.due = at
	return true
}

// Probe is one question to put.
type Probe struct {
	Backend uint32
	Began   time.Time
}

// Due appends the probes that are to be made now, and says when to ask again at
// the latest. Each must be answered by Probed, whatever becomes of it.
func (b *Board) Due(dst []Probe, now time.Time) (probes []Probe, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next = now.Add(b.cfg.Interval)
	for key, e := range b.engines {
		switch o := &e.own; {
		case !e.mine || o.underway:
		case o.due.After(now):
			if o.due.Before(next) {
				next = o.due
			}
		default:
			o.underway, o.began = true, now
			dst = append(dst, Probe{key, now})
		}
	}
	return dst, next
}

// Probed takes the outcome of a probe: NoReason is well. It reports whether this
// node's word on the engine has changed, and whether it has just come back, so
// that it is worth asking what it is now.
func (b *Board) Probed(p Probe, why Reason, now time.Time) (changed, back bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[p.Backend]
	if e == nil {
		return false, false // removed meanwhile
	}
	o := &e.own
	was, first := o.failing(), o.probed.IsZero()
	o.underway, o.probed = false, now
	pause := time.Duration(float64(b.cfg.Interval) * (0.9 + 0.2*b.cfg.Jitter()))
	switch {
	case why == NoReason:
		back = o.fails > 0
		o.fails, o.timeouts = 0, 0
		if o.goods++; o.goods >= goodsToOK {
			o.bad = false
		}
	case why == Timeout && o.answeredAt.After(p.Began):
		// Too busy to answer this, but it computes.
	default:
		o.goods = 0
		o.badWhy = why
		o.fails++
		if why == Timeout {
			o.timeouts++
		}
		if o.fails-o.timeouts >= failsToBad || o.fails >= timeoutsToBad {
			o.bad = true
		} else {
			pause = retryAfter
		}
	}
	o.due = now.Add(pause)
	if changed = o.settle(was, now); first && !o.failing() {
		o.since, changed = now, true
	}
	return changed, back
}

// settle notes when the verdict changed.
func (o *own) settle(was bool, now time.Time) bool {
	if was == o.failing() {
		return false
	}
	o.since = now
	return true
}

// Failed takes a request of this node's that spoke against the engine. It
// reports whether there is something to tell the others, or to probe, now.
func (b *Board) Failed(key uint32, why Reason, now time.Time) (urgent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil {
		return false
	}
	o := &e.own
	was := o.failing()
	urgent = now.Sub(o.struckAt) > suspicionLasts
	o.strikes++
	o.strikeWhy, o.struckAt = why, now
	if o.strikes >= strikesToBad {
		o.passive = true
	}
	if e.mine && !o.bad {
		urgent = o.hurry(now) || urgent
	}
	return o.settle(was, now) || urgent
}

// Answered says when the engine last answered a request of this node's.
func (b *Board) Answered(key uint32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || !at.After(e.own.answeredAt) {
		return
	}
	o := &e.own
	was := o.failing()
	o.answeredAt = at
	if at.After(o.struckAt) {
		o.strikes, o.passive = 0, false
	}
	o.settle(was, at)
}

// Reports appends this node's word on all engines it has something to say of:
// those it probes, and others that fail its requests. Sorted by key, so that what
// has not changed looks the same.
func (b *Board) Reports(dst []Report, now time.Time) []Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, e := range b.engines {
		o := &e.own
		o.expire(now)
		r := Report{Backend: key, Failing: o.failing(), Passive: o.passive && !o.bad, Reason: o.reason(), Started: e.restart.seconds()}
		r.OK = e.mine && !r.Failing && b.probedLately(o, now)
		r.Suspect = !r.Failing && o.strikes > 0 && now.Sub(o.struckAt) < suspicionLasts
		if !r.OK && !r.Failing && !r.Suspect {
			continue
		}
		if !o.since.IsZero() {
			r.Since = uint32(max(o.since.Unix(), 0))
		}
		dst = append(dst, r)
	}
	slices.SortFunc(dst, func(x, y Report) int { return cmp.Compare(x.Backend, y.Backend) })
	return dst
}

// expire ends what failures of requests said once they are old.
func (o *own) expire(now time.Time) {
	if o.strikes == 0 || now.Sub(o.struckAt) < strikesLast {
		return
	}
	was := o.failing()
	o.strikes, o.passive = 0, false
	o.settle(was, now)
}

// probedLately says whether the last probe is recent enough to speak for now.
func (b *Board) probedLately(o *own, now time.Time) bool {
	return !o.probed.IsZero() && now.Sub(o.probed) < 3*b.cfg.Interval+b.cfg.Timeout
}
