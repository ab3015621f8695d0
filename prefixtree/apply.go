package prefixtree

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Applied counts the records of a payload.
type Applied struct {
	Records int
	News    int // records that changed this tree
	Unknown int // skipped: unknown backend or kind
	Late    int // without effect: older generation, behind a fence or past retention
}

// ApplyDelta merges a payload of another node, with shift added to its times, which are capped at 5
// s after now. Payloads may be reordered, repeated or lost. After an error, which wraps ErrDelta,
// the records before the fault stay merged. Safe for concurrent use.
func (t *Tree) ApplyDelta(payload []byte, names Names, shift time.Duration, now Time) (Applied, error) {
	m := merge{t: t, now: clampTime(now), news: t.buffer()}
	defer t.publish(m.news)
	return m.payload(payload, names, shift)
}

type merge struct {
	t    *Tree
	now  Time
	news *[]Fact

	changed int
	runs    [lookahead]run
	waiting int
	blocks  [lookahead]Hash
	filled  int
	prefetch
}

type run struct {
	Fact
	from, to int
}

func (m *merge) payload(payload []byte, names Names, shift time.Duration) (applied Applied, err error) {
	m.t.advance(m.now)
	r := decoder{}
	if err := r.begin(payload); err != nil {
		return applied, err
	}
	by := Time(max(-int64(maxTime), min(shift.Milliseconds(), int64(maxTime))))
	for {
		var more bool
		if more, err = r.next(); !more {
			break
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
		if f.Kind == Fence {
			m.flush() // earlier facts may still be news
			if m.t.late(&f, m.now) {
				applied.Late++
			} else if m.t.applyFence(&f, m.now) {
				m.changed++
			}
			continue
		}
		if m.t.late(&f, m.now) {
			applied.Late += n
			continue
		}
		if err = m.record(&f, r.hashes); err != nil {
			break
		}
	}
	m.flush()
	applied.News = m.changed
	return applied, err
}

func (m *merge) clamp(at Time) Time { return clampTime(min(at, m.now+maxAhead)) }

func (m *merge) record(f *Fact, hashes []byte) error {
	for len(hashes) > 0 {
		if m.filled == lookahead {
			m.flush()
		}
		from := m.filled
		for ; len(hashes) > 0 && m.filled < lookahead; hashes = hashes[hashBytes:] {
			h := Hash(binary.LittleEndian.Uint64(hashes))
			if h == 0 {
				return fmt.Errorf("%w: a hash of zero", ErrDelta)
			}
			m.blocks[m.filled] = h
			m.filled++
		}
		m.runs[m.waiting] = run{*f, from, m.filled}
		m.waiting++
	}
	return nil
}

func (m *merge) flush() {
	m.fetch(m.t, m.blocks[:m.filled])
	m.index = 0
	for i := range m.runs[:m.waiting] {
		r := &m.runs[i]
		blocks, places := m.blocks[r.from:r.to], m.places[r.from:r.to]
		m.see(r.Backend, blocks, r.from)
		if r.Kind == Drop || r.Kind == Revert {
			m.changed += m.t.retract(r.Backend, blocks, places, retraction{r.Before, r.Time, r.Generation})
		} else {
			m.place(&r.Fact, blocks, places)
			if m.t.heard != nil && r.Kind == Add {
				for _, h := range blocks {
					m.t.heard(r.Backend, h, int(max(r.Span, 1)), r.Time)
				}
			}
			for _, h := range blocks {
				m.t.crossed(h, r.Backend, r.Generation, r.Time)
			}
		}
	}
	m.waiting, m.filled = 0, 0
}

// late reports whether a fact has no effect. Generation 0 is judged by time alone.
func (t *Tree) late(f *Fact, now Time) bool {
	generation := t.ledgers[f.Backend].generation.Load()
	if f.Generation != 0 && f.Generation < generation {
		return true
	}
	switch f.Kind {
	case Add, Touch:
		if t.limits[f.Backend].dead(f.Time, now) {
			return true
		}
		if f.Generation > generation {
			t.hear(f, now)
		}
		return false
	case Fence:
		return int64(f.Time) <= t.limits[f.Backend].floor.Load()
	default:
		return false
	}
}

func (t *Tree) applyFence(f *Fact, now Time) bool {
	l := &t.ledgers[f.Backend]
	l.mu.Lock()
	defer l.mu.Unlock()
	floor := &t.limits[f.Backend].floor
	if int64(f.Time) <= floor.Load() {
		return false
	}
	raise(floor, int64(f.Time))
	l.surprises, l.misses, l.cleared = 0, misses{}, now
	l.usage.clear()
	t.limits[f.Backend].span.Store(l.usage.span())
	return true
}

func (m *merge) place(f *Fact, blocks []Hash, places []place) {
	lim := &m.t.limits[f.Backend]
	told := makeEntry(f.Backend, f.Time, anchorFlags(f.Span))
	span := float64(max(1, min(f.Span, maxSpan)))
	var left [lookahead]use
	touched, n := 0, 0
	for i, h := range blocks {
		p := &places[i]
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
		m.changed++
		switch at := entryTime(prior); {
		case prior == 0 || lim.dead(at, m.now):
			touched++
		case at < f.Time:
			touched++
			if n == 0 || left[n-1].at != at {
				left[n] = use{at: at}
				n++
			}
			left[n-1].blocks += span
		case at > f.Time && m.news != nil && !m.t.crossed(h, f.Backend, f.Generation, at): // prior was no anchor, so no peer has this time
			m.t.append(m.news, Touch, h, mergeEntries(prior, e), at, 0)
		}
	}
	if touched > 0 {
		m.t.noteBackend(f.Backend, f.Time)
		m.t.useAgain(f.Backend, left[:n], use{f.Time, span * float64(touched)})
	}
}
