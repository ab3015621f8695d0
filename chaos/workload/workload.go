// Package workload says what is asked of a fleet, and when: traces of real
// traffic read from files, and sessions generated from published parameters.
//
// A workload is a value that never changes; a [Source] is one run through it. The
// same source feeds the load generator (which turns requests into text) and the
// simulator (which uses the keys alone), so that both put the same question.
//
// The package sends nothing, keeps no clock and starts no goroutine.
package workload

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Workload is a trace or a session generator. It is immutable and safe for
// concurrent use: any number of sources may be open at once, and two sources
// opened with equal options yield equal requests (given equal completions).
type Workload interface {
	// Name is short and fit for a label: a file's base name or a preset's name.
	Name() string
	// KeyTokens is the number of tokens one key stands for, in every request.
	KeyTokens() int
	// Source starts a run. It fails on options that make no sense.
	Source(opt Options) (Source, error)
}

// Source hands out the requests of one run in order of time. It is not safe for
// concurrent use.
type Source interface {
	// Peek returns when the next request known so far is due. With ok false none
	// is known; more may follow once outstanding ones are reported to Done, so a
	// run is over when ok is false and nothing is outstanding.
	Peek() (at time.Duration, ok bool)
	// Next returns that request; nil when Peek says there is none. The request
	// belongs to the caller for good. Its slices may be shared with other requests
	// and must not be written to.
	Next() *Request
	// Done tells that r ended at the given time, well or badly, and must be called
	// once for every request handed out. Generated sessions derive their next turn
	// from it, which is never due before at; traces ignore it.
	Done(r *Request, at time.Duration)
	// Total is the number of requests the run will yield if that is known, else 0
	// (for progress display).
	Total() int
	// Span is the time of the last possible arrival; 0 if unknown.
	Span() time.Duration
}

// Request is one request as it reaches the fleet.
type Request struct {
	Index   int           // 0, 1, ... in the order handed out
	At      time.Duration // arrival, since the start of the run
	Session int           // dense from 0; -1 if the source tells of no sessions
	Turn    int           // position in the session, from 1; 0 if there is none

	// Keys name the full blocks of the prompt, root to leaf, each for KeyTokens
	// tokens and everything before it: two requests have equal keys at a position
	// exactly if their prompts are equal up to its end.
	Keys []uint64
	// OutKeys continue Keys over the blocks that the output completes. Empty
	// where the source does not tell what was generated (all traces).
	OutKeys []uint64

	KeyTokens    int
	PromptTokens int // at least len(Keys) * KeyTokens, and at least 1
	OutputTokens int // at least 1

	segments []Segment
	tail     uint64 // names the tokens after the last full block
}

// Options bound and shape one run. The zero value is the whole workload as
// recorded.
type Options struct {
	// Speed divides a trace's time stamps, and multiplies a generator's session
	// rate (think time is a property of people and stays). 0 means 1.
	Speed float64
	// Duration drops what would arrive at or after it, in time of the run (after
	// Speed). 0: no limit for traces, the preset's own for generators.
	Duration time.Duration
	// Requests ends the run after so many. 0: no limit.
	Requests int
	// Seed decides everything random: arrivals, lengths, think times, and how
	// coarse time stamps of a trace are spread. Equal seeds, equal runs.
	Seed uint64
	// Backends scales a generator's session rate in proportion to the number of
	// backends its preset was made for, so that the load on each stays the same.
	// 0 leaves it alone. Traces ignore it.
	Backends int
}

// ErrOptions is wrapped by every error about options of a run.
var ErrOptions = errors.New("workload options")

func (o Options) checked() (Options, error) {
	if o.Speed == 0 {
		o.Speed = 1
	}
	switch {
	case math.IsNaN(o.Speed) || math.IsInf(o.Speed, 0) || o.Speed < 0:
		return o, fmt.Errorf("%w: speed is %v, want a number above 0", ErrOptions, o.Speed)
	case o.Duration < 0:
		return o, fmt.Errorf("%w: duration is %v, want 0 (no limit) or more", ErrOptions, o.Duration)
	case o.Requests < 0:
		return o, fmt.Errorf("%w: requests is %d, want 0 (no limit) or more", ErrOptions, o.Requests)
	case o.Backends < 0:
		return o, fmt.Errorf("%w: backends is %d, want 0 (as the preset) or more", ErrOptions, o.Backends)
	}
	return o, nil
}

// mix joins a value to a running 64-bit state: one round of the splitmix64
// finaliser over their combination. It names blocks; it protects nothing.
func mix(state, v uint64) uint64 {
	x := state ^ (v+0x9e3779b97f4a7c15)*0xff51afd7ed558ccd
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
