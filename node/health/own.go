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
	wanted   bool      // to be probed soon, though it may be for others to probe it
	began    time.Time // of the last probe
	probed   time.Time // when the last probe ended; zero none
	fails    int       // probes in a row
	timeouts int       // of these, were taken and not answered
	goods    int
	bad      bool // by probes
	badWhy   Reason
	badAt    time.Time // when that began

	struckAt   time.Time // when a request last failed
	passive    bool      // failing by requests
	passiveWhy Reason
	answeredAt time.Time

	since time.Time // of failing or, while it is not, of being well
}

func (o *own) failing() bool { return o.bad || o.passive }

func (o *own) reason() Reason {
	switch {
	case o.bad:
		return o.badWhy
	case o.passive:
		return o.passiveWhy
	}
	return NoReason
}

// hurry moves the next probe forward to now, but not on the heels of the last.
func (e *engine) hurry(now time.Time) bool {
	o := &e.own
	at := now
	if soonest := o.began.Add(retryAfter); at.Before(soonest) {
		at = soonest
	}
	if o.underway {
		o.wanted = true // the answer to what is under way says nothing of what has happened since
		return false
	}
	if (e.mine || o.wanted) && !at.Before(o.due) {
		return false
	}
	o.due, o.wanted = at, true
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
	b.failing = 0
	for key, e := range b.engines {
		if e.mine && e.own.bad {
			b.failing++
		}
		switch o := &e.own; {
		case !e.mine && !o.wanted || o.underway:
		case o.due.After(now):
			if o.due.Before(next) {
				next = o.due
			}
		default:
			o.underway, o.wanted, o.began = true, false, now
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
	o.underway = false
	o.due = now.Add(retryAfter)
	if !e.mine {
		return false, false // put for this node's own requests alone; the reporters judge
	}
	o.probed = now
	pause := time.Duration(float64(b.cfg.Interval) * (0.9 + 0.2*b.cfg.Jitter()))
	switch {
	case why == NoReason:
		back = o.fails > 0
		o.fails, o.timeouts = 0, 0
		if o.goods++; o.goods >= goodsToOK {
			o.bad = false
		} else if o.bad {
			pause = min(pause, confirmAfter)
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
			pause = o.failed(pause, b.failing, now)
		} else {
			pause = retryAfter
		}
	}
	if !o.wanted {
		o.due = now.Add(pause)
	}
	if changed = o.settle(was, now); first && !o.failing() {
		o.since, changed = now, true
	}
	return changed, back
}

// failed notes that probes find the engine failing, as they do so many others, and returns
// the pause before the next.
func (o *own) failed(pause time.Duration, others int, now time.Time) time.Duration {
	if !o.bad {
		o.bad, o.badAt = true, now
	}
	if now.Sub(o.badAt) > quickFor {
		return pause
	}
	return min(pause, max(pause/4, time.Duration(others)*quickShare))
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
// reports whether there is something to tell the others, or to probe, now: the
// engine is probed at once, by whichever node has seen that.
func (b *Board) Failed(key uint32, now time.Time) (urgent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil {
		return false
	}
	urgent = now.Sub(e.own.struckAt) > suspicionLasts
	e.own.struckAt = now
	if !e.own.bad {
		urgent = e.hurry(now) || urgent
	}
	return urgent
}

// Ejected says whether this node gives the engine no requests because they failed, and of
// what. It reports whether that is news for the others.
func (b *Board) Ejected(key uint32, ejected bool, why Reason, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil {
		return false
	}
	was := e.own.failing()
	e.own.passive, e.own.passiveWhy = ejected, why
	return e.own.settle(was, now)
}

// Answered says when the engine last answered a request of this node's.
func (b *Board) Answered(key uint32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || !at.After(e.own.answeredAt) {
		return
	}
	e.own.answeredAt = at
}

// Reports appends this node's word on all engines it has something to say of:
// those it probes, and others that fail its requests. Sorted by key, so that what
// has not changed looks the same.
func (b *Board) Reports(dst []Report, now time.Time) []Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, e := range b.engines {
		o := &e.own
		r := Report{Backend: key, Failing: o.failing(), Passive: o.passive && !o.bad, Reason: o.reason(), Started: e.restart.seconds()}
		r.OK = e.mine && !r.Failing && b.probedLately(o, now)
		r.Suspect = !r.Failing && now.Sub(o.struckAt) < suspicionLasts
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

// probedLately says whether the last probe is recent enough to speak for now.
func (b *Board) probedLately(o *own, now time.Time) bool {
	return !o.probed.IsZero() && now.Sub(o.probed) < 3*b.cfg.Interval+b.cfg.Timeout
}
