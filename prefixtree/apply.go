package prefixtree

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Applied says what became of a payload's records: facts, fences and what a later release may have put between them.
type Applied struct {
	Records int // all of them
	News    int // changed this tree
	Unknown int // of backends this node does not know, or of kinds it does not know: skipped
	Late    int // of an older generation, behind a fence or past retention: without effect
}

// ApplyDelta merges a payload that another node's Outbox has drained. shift is added to its times; times then more than 5 s
// ahead of now are taken as that. Order, repetition and loss of payloads do not matter, but for drops and reverts, which
// are hints. On an error, which wraps ErrDelta, the records before the malformed one have been merged, which does no harm.
// Payload stays the caller's. Allocates nothing. Safe for concurrent use.
func (t *Tree) ApplyDelta(payload []byte, names Names, shift time.Duration, now Time) (Applied, error) {
	m := merge{t: t, now: clampTime(now)}
	return m.payload(payload, names, shift)
}

// ApplyDeltaNews is ApplyDelta that appends to news what this tree alone now knows at anchors. A block that was no anchor
// here becomes one by a peer's older fact: its later time has not been told to anybody yet. That happens at most once per
// fact and node, so it cannot echo.
func (t *Tree) ApplyDeltaNews(payload []byte, names Names, shift time.Duration, now Time, news []Fact) (Applied, []Fact, error) {
	m := merge{t: t, now: clampTime(now), tells: true, news: news}
	applied, err := m.payload(payload, names, shift)
	return applied, m.news, err
}

// ApplySnapshot merges a page of another node's Snapshot; the rules of ApplyDelta hold, pages have the same form.
func (t *Tree) ApplySnapshot(page []byte, names Names, shift time.Duration, now Time) (Applied, error) {
	return t.ApplyDelta(page, names, shift, now)
}

// merge brings other nodes' facts into a tree.
type merge struct {
	t     *Tree
	now   Time
	tells bool // somebody wants the news
	news  []Fact
	ahead
}

func (m *merge) payload(payload []byte, names Names, shift time.Duration) (applied Applied, err error) {
	m.t.advance(m.now)
	r := decoder{}
	if err := r.begin(payload); err != nil {
		return applied, err
	}
	by := Time(max(-int64(maxTime), min(shift.Milliseconds(), int64(maxTime))))
	for {
		more, err := r.next()
		if !more {
			return applied, err
		}
		n := max(1, len(r.hashes)/hashBytes)
		applied.Records += n
		f := r.fact
		known := false
		if !r.skip {
			f.Backend, known = names.Backend(r.key)
		}
		if !known || int(f.Backend) >= len(m.t.limits) {
			applied.Unknown += n
			continue
		}
		f.Time = m.clamp(f.Time + by)
		if f.Before != 0 {
			f.Before = m.clamp(f.Before + by)
		}
		if m.t.late(&f, m.now) {
			applied.Late += n
			continue
		}
		if f.Kind == Fence {
			if m.t.applyFence(&f, m.now) {
				applied.News++
			}
			continue
		}
		changed, err := m.runs(&f, r.hashes)
		applied.News += changed
		if err != nil {
			return applied, err
		}
	}
}

func (m *merge) clamp(at Time) Time { return clampTime(min(at, m.now+maxAhead)) }

// runs merges a run of any length.
func (m *merge) runs(f *Fact, hashes []byte) (changed int, err error) {
	var run [lookahead]Hash
	for len(hashes) > 0 {
		n := min(lookahead, len(hashes)/hashBytes)
		for i := range n {
			run[i] = Hash(binary.LittleEndian.Uint64(hashes[i*hashBytes:]))
			if run[i] == 0 {
				return changed, fmt.Errorf("%w: a hash of zero", ErrDelta)
			}
		}
		changed += m.run(f, run[:n])
		hashes = hashes[n*hashBytes:]
	}
	return changed, nil
}

// late says whether a fact's backend or the present are past it.
func (t *Tree) late(f *Fact, now Time) bool {
	if f.Generation < t.ledgers[f.Backend].generation.Load() {
		return true
	}
	switch f.Kind {
	case Add, Touch:
		return t.limits[f.Backend].dead(f.Time, now)
	case Fence:
		return int64(f.Time) <= t.limits[f.Backend].floor.Load()
	default:
		return false
	}
}

// applyFence clears the backend up to the fact's time and reports whether that was new.
func (t *Tree) applyFence(f *Fact, now Time) bool {
	l := &t.ledgers[f.Backend]
	l.mu.Lock()
	defer l.mu.Unlock()
	floor := &t.limits[f.Backend].floor
	if int64(f.Time) <= floor.Load() {
		return false
	}
	raise(floor, int64(f.Time))
	// As after an amnesia of its own: what surprised this node, too, is dealt with.
	l.surprises, l.cleared = 0, now
	l.usage.clear()
	t.limits[f.Backend].span.Store(l.usage.span())
	return true
}

// run merges the given blocks, at most lookahead of them and none zero, as f says, and returns how many facts changed. f is not
// late and no fence.
func (m *merge) run(f *Fact, hashes []Hash) (changed int) {
	m.look(m.t, f.Backend, hashes)
	if f.Kind == Drop || f.Kind == Revert {
		return m.retract(f, hashes)
	}
	lim := &m.t.limits[f.Backend]
	told := makeEntry(f.Backend, f.Time, anchorFlags(f.Span))
	span := float64(max(1, min(f.Span, maxSpan)))
	var left [lookahead]use // earlier touches of the blocks that are touched now
	touched, n := 0, 0
	for i, h := range hashes {
		p := &m.places[i]
		e := told
		if p.entry != 0 {
			if e = mergeEntries(p.entry, told); e == p.entry {
				continue
			}
		}
		prior := p.entry
		if !p.touch(e, m.now) {
			prior = m.t.change(p, uint64(h), e, m.now)
		}
		if mergeEntries(prior, e) == prior {
			continue
		}
		changed++
		switch at := entryTime(prior); {
		case prior == 0 || lim.dead(at, m.now):
			touched++
		case at < f.Time:
			touched++
			if n == 0 || left[n-1].at != at {
				left[n].at, left[n].blocks = at, 0
				n++
			}
			left[n-1].blocks += span
		case at > f.Time && m.tells: // prior was no anchor
			m.t.append(&m.news, Touch, h, mergeEntries(prior, e), at, 0)
		}
	}
	if touched > 0 {
		m.t.noteBackend(f.Backend, f.Time)
		m.t.useAgain(f.Backend, left[:n], use{f.Time, span * float64(touched)})
	}
	return changed
}

// retract is run for drops and reverts.
func (m *merge) retract(f *Fact, hashes []Hash) (changed int) {
	verdict := func(e entry) (to entry, remove bool) {
		switch at := entryTime(e); {
		case f.Kind == Drop && at <= f.Time:
			return e, true
		case f.Kind == Revert && at == f.Time && e&entryAnchor != 0:
			return entryAt(e, max(f.Before, 1)), f.Before == 0
		}
		return e, false
	}
	for i, h := range hashes {
		p := &m.places[i]
		if p.entry == 0 && !p.torn {
			continue
		}
		if to, remove := verdict(p.entry); !p.torn && !remove && to == p.entry {
			continue
		}
		if was, is, _ := m.t.edit(p, f.Backend, uint64(h), verdict); is != was {
			changed++
		}
	}
	return changed
}
