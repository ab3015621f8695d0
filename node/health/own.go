package health

import (
	"cmp"
	"slices"
	"time"
)

type own struct {
	due      time.Time
	underway bool
	wanted   bool // probe soon, even if this node is no reporter
	began    time.Time
	probed   time.Time // end of the last probe; zero none
	fails    int       // failed probes in a row
	timeouts int       // those of fails that connected and got no answer
	goods    int
	bad      bool
	badWhy   Reason
	badAt    time.Time // when bad became true

	struckAt   time.Time
	passive    bool // failing by requests
	passiveWhy Reason
	answeredAt time.Time

	since time.Time // start of the failing or healthy state
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

// hurry moves the next probe to now, or retryAfter after the last one.
func (e *watched) hurry(now time.Time) bool {
	o := &e.own
	at := now
	if soonest := o.began.Add(retryAfter); at.Before(soonest) {
		at = soonest
	}
	if o.underway {
		o.wanted = true // a running probe proves nothing about later events
		return false
	}
	if (e.mine || o.wanted) && !at.Before(o.due) {
		return false
	}
	o.due, o.wanted = at, true
	return true
}

// Retune replaces the interval and the timeout of probes. off: none follow, so that nothing could refute what earlier ones found.
func (b *Board) Retune(interval, timeout time.Duration, off bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cfg.Interval, b.cfg.Timeout = interval, timeout
	latest := now.Add(interval)
	for _, e := range b.engines {
		o := &e.own
		if o.due.After(latest) {
			o.due = latest
		}
		if off {
			was := o.failing()
			o.bad, o.fails, o.timeouts, o.goods, o.probed = false, 0, 0, 0, time.Time{}
			o.settle(was, now)
		}
	}
}

type Probe struct {
	Backend uint32
	Began   time.Time
}

// Due appends the probes to send, each to be passed to Probed, and returns when to call again at
// the latest.
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

// Probed records a probe; NoReason is success. changed: this node's report changed; back: the
// engine answers again.
func (b *Board) Probed(p Probe, why Reason, now time.Time) (changed, back bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[p.Backend]
	if e == nil {
		return false, false
	}
	o := &e.own
	was, first := o.failing(), o.probed.IsZero()
	o.underway = false
	o.due = now.Add(retryAfter)
	if !e.mine {
		return false, false // sent for this node's own requests; only reporters judge
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
		// Too busy for the probe, but answering requests.
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

// failed returns the pause; others is the number of failing engines.
func (o *own) failed(pause time.Duration, others int, now time.Time) time.Duration {
	if !o.bad {
		o.bad, o.badAt = true, now
	}
	if now.Sub(o.badAt) > quickFor {
		return pause
	}
	return min(pause, max(pause/4, time.Duration(others)*quickShare))
}

func (o *own) settle(was bool, now time.Time) bool {
	if was == o.failing() {
		return false
	}
	o.since = now
	return true
}

// Failed records a failed request of this node. urgent: report or probe now, even if this node is
// no reporter.
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

// Ejected records whether and why the policy ejects the engine, and returns whether this node's
// report changed.
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

func (b *Board) Answered(key uint32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || !at.After(e.own.answeredAt) {
		return
	}
	e.own.answeredAt = at
}

// Reports appends this node's reports, sorted by key so that unchanged ones encode to equal bytes.
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

func (b *Board) probedLately(o *own, now time.Time) bool {
	return !o.probed.IsZero() && now.Sub(o.probed) < 3*b.cfg.Interval+b.cfg.Timeout
}
