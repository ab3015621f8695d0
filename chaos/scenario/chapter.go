package scenario

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"time"
)

// Old attempts are judged and folded during the run, so that memory hardly depends on its length.

const (
	// foldAfter is longer than any attempt with its work.
	foldAfter = patience + 20*time.Second
	foldEvery = 10 * time.Second
)

// past holds the figures of folded attempts.
type past struct {
	until    time.Duration // begin of the first attempt that is not folded
	findings map[string]*finding
	attempts int
	requests int
	outcomes Outcomes
	turns    []turn // by time of sending
	stays    []stay // by time of sending
	held     []held
	slices   []Slice
}

// turn is the hit of a later turn: 24 bytes, because a run makes millions.
type turn struct {
	sent     time.Duration
	hit      float64
	possible float64
}

// folder is not safe for concurrent use.
type folder struct {
	base evidence // fixed before the run; judges of attempts need no more of the rest
	l    *ledger
	log  *marks
	o    *observer
	past past
	kept *os.File // takes every attempt as a line; nil: not kept
	mem  memoryUse
}

type memoryUse struct {
	PeakMiB float64 `json:"peak_mib"`
	EndMiB  float64 `json:"end_mib"`
}

func newFolder(base evidence, l *ledger, log *marks, o *observer, keep string) (_ *folder, err error) {
	f := &folder{base: base, l: l, log: log, o: o}
	if keep != "" {
		f.kept, err = os.OpenFile(filepath.Join(keep, "attempts.jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	}
	return f, err
}

func (f *folder) close() error {
	if f.kept == nil {
		return nil
	}
	return f.kept.Close()
}

func (f *folder) play(ctx context.Context) error {
	for sleep(ctx, foldEvery) == nil {
		if err := f.fold(f.l.now() - foldAfter); err != nil {
			return err
		}
	}
	return nil
}

func (f *folder) fold(before time.Duration) error {
	f.mem.look()
	width := f.base.sliceWidth()
	before = before.Truncate(width)
	if before <= f.past.until {
		return nil
	}
	attempts, visits := f.l.take(before)
	part := f.base
	part.partial = true
	part.attempts, part.visits = attempts, visits
	part.marks, part.seen = f.log.between(earliest(attempts, f.past.until), before+foldAfter), f.o.backends()
	part.foldInto(&f.past, before)
	return f.write(&part)
}

func (e *evidence) foldInto(p *past, before time.Duration) {
	if p.findings == nil {
		p.findings, p.outcomes = make(map[string]*finding), make(Outcomes)
	}
	slices.SortStableFunc(e.attempts, func(a, b *Attempt) int { return cmp.Compare(a.Sent, b.Sent) })
	for _, i := range Invariants() {
		if i.ofAttempts {
			if p.findings[i.Name] == nil {
				p.findings[i.Name] = new(finding)
			}
			i.judge(e, p.findings[i.Name])
		}
	}
	for _, a := range e.attempts {
		p.attempts++
		p.outcomes[a.Outcome]++
		if a.Last {
			p.requests++
		}
		if t, ok := e.turnOf(a); ok {
			p.turns = append(p.turns, t)
		}
		if s, ok := e.stayOf(a); ok {
			p.stays = append(p.stays, s)
		}
		if e.places > 0 {
			p.held = append(p.held, e.heldFor(a)...)
		}
	}
	if before > p.until {
		p.slices = append(p.slices, e.slices(p, before)...)
	}
	p.until = before
}

// whole folds the attempts that are left, once.
func (e *evidence) whole() *evidence {
	end := e.drained + 1
	if e.drained <= 0 {
		end = 0
	}
	e.foldInto(&e.past, end)
	return e
}

func earliest(attempts []*Attempt, from time.Duration) time.Duration {
	for _, a := range attempts {
		if a.Possible > 0 {
			from = min(from, a.Kept)
		}
	}
	return from - foldAfter
}

func (f *folder) write(e *evidence) error {
	if f.kept == nil {
		return nil
	}
	w := bufio.NewWriter(f.kept)
	enc := json.NewEncoder(w)
	for _, a := range e.attempts {
		line := struct {
			*Attempt
			Visits []visit
		}{a, e.visits[a.ID]}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return w.Flush()
}

func (m *memoryUse) look() {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	m.EndMiB = float64(s[0].Value.Uint64()-s[1].Value.Uint64()) / (1 << 20)
	m.PeakMiB = max(m.PeakMiB, m.EndMiB)
}

// take removes the ended attempts sent before a time, and earlier visits.
func (l *ledger) take(before time.Duration) ([]*Attempt, map[string][]visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out, rest []*Attempt
	visits := make(map[string][]visit)
	for _, a := range l.attempts {
		if a.Sent >= before {
			rest = append(rest, a)
			continue
		}
		out = append(out, a)
		if v, ok := l.visits[a.ID]; ok {
			visits[a.ID] = v
			delete(l.visits, a.ID)
		}
	}
	for id, v := range l.visits {
		if v[0].Began < before {
			visits[id] = v
			delete(l.visits, id)
		}
	}
	l.attempts = rest
	return out, visits
}

func (l *marks) between(from, to time.Duration) (out []Mark) {
	for _, m := range l.snapshot() {
		if m.during(from, to, 0) {
			out = append(out, m)
		}
	}
	return out
}

func (o *observer) backends() map[string]*seen {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]*seen, len(o.seen))
	for name, s := range o.seen {
		c := &seen{backends: make(map[string]*track[string], len(s.backends))}
		for engine, t := range s.backends {
			c.backends[engine] = &track[string]{slices.Clone(t.list)}
		}
		out[name] = c
	}
	return out
}
