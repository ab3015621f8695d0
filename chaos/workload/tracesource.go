package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Source starts a run. It spreads coarse time stamps (Mooncake's have steps of 3 s) at random over
// the step that follows, by the seed and in the file's order. Requests share the memory of their
// keys with earlier turns where possible.
func (t *Trace) Source(opt Options) (Source, error) {
	opt, err := opt.checked()
	if err != nil {
		return nil, err
	}
	s := &traceSource{trace: t, arrivals: t.arrivals(opt), open: make(map[int][]uint64), seed: opt.Seed}
	if len(s.arrivals) == 0 {
		return nil, fmt.Errorf("%w: no request of %s arrives within %v at speed %g", ErrOptions, t.name, opt.Duration, opt.Speed)
	}
	return s, nil
}

func (t *Trace) arrivals(opt Options) []time.Duration {
	at := make([]float64, len(t.lines))
	for i := range t.lines {
		at[i] = t.lines[i].at - t.lines[0].at
	}
	if t.coarse {
		spread(at, rand.New(rand.NewPCG(opt.Seed, 0x57e9)))
	}
	var out []time.Duration
	for _, ms := range at {
		d := milliseconds(ms / opt.Speed)
		if opt.Duration > 0 && d >= opt.Duration || opt.Requests > 0 && len(out) == opt.Requests {
			break
		}
		out = append(out, d)
	}
	return out
}

// spread moves requests with equal time stamps to random times before the next time stamp. The last
// step is as long as the one before.
func spread(at []float64, rng *rand.Rand) {
	step := 0.0
	for i := 0; i < len(at); {
		j := i + 1
		for j < len(at) && at[j] == at[i] {
			j++
		}
		if j < len(at) {
			step = at[j] - at[i]
		}
		base := at[i]
		for k := i; k < j; k++ {
			at[k] = base + rng.Float64()*step
		}
		slices.Sort(at[i:j])
		i = j
	}
}

type traceSource struct {
	trace    *Trace
	arrivals []time.Duration
	next     int
	seed     uint64
	// open holds the keys of each session's latest request, because the next one mostly continues
	// them. The trace's number of sessions bounds it.
	open map[int][]uint64
}

func (s *traceSource) Peek() (time.Duration, bool) {
	if s.next == len(s.arrivals) {
		return 0, false
	}
	return s.arrivals[s.next], true
}

func (s *traceSource) Next() *Request {
	at, ok := s.Peek()
	if !ok {
		return nil
	}
	l := &s.trace.lines[s.next]
	full := min(l.blocks, l.input/s.trace.blockTokens)
	keys, tail := s.keys(l, full)
	r := &Request{
		Index: s.next, At: at, Session: l.session, Turn: l.turn,
		Keys: keys, KeyTokens: s.trace.blockTokens, PromptTokens: l.input, OutputTokens: l.output,
		tail: tail,
	}
	r.segments = []Segment{{Role: User, Tokens: r.PromptTokens, blocks: true}}
	s.next++
	return r
}

// keys chains the line's block ids into keys of the first full blocks, and names the tail by its
// id, or else uniquely for this line.
func (s *traceSource) keys(l *line, full int) (keys []uint64, tail uint64) {
	before := s.open[l.session]
	if l.session < 0 {
		before = nil
	}
	state := uint64(0x6b65)
	same := true
	i := 0
	tail = mix(mix(0x7a11, s.seed), uint64(l.no))
	for _, sp := range s.trace.spans[l.from:l.to] {
		for n := range uint64(sp.n) {
			state = mix(state, sp.id+n)
			if i == full {
				tail = state
				break
			}
			if same && (i >= len(before) || before[i] != state) {
				// Up to here the keys equal the earlier request's: share its memory if this one
				// continues it, copy if it branches off.
				same = false
				if i < len(before) {
					keys = slices.Clone(before[:i])
				} else {
					keys = before
				}
				keys = slices.Grow(keys, full-i)
			}
			if !same {
				keys = append(keys, state)
			}
			i++
		}
	}
	if same {
		keys = before[:i]
	}
	if l.session >= 0 && len(keys) >= len(before) {
		s.open[l.session] = keys
	}
	return keys[:len(keys):len(keys)], tail
}

func (s *traceSource) Done(*Request, time.Duration) {}

func (s *traceSource) Total() int { return len(s.arrivals) }

func (s *traceSource) Span() time.Duration { return s.arrivals[len(s.arrivals)-1] }
