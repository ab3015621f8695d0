// Package workload has the requests of a fleet and their times: traces of real traffic from files,
// and sessions generated from published parameters.
//
// A workload never changes; a [Source] is one run through it. The load generator, which turns keys
// into text, and the simulator, which uses the keys alone, share sources and thus requests.
//
// The package sends nothing, keeps no clock and starts no goroutine.
package workload

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Workload is a trace or a session generator. It is immutable and safe for concurrent use. Sources
// opened with equal options yield equal requests, given equal completions.
type Workload interface {
	// Name is short and fit for a label: a file's base name or a preset's name.
	Name() string
	// KeyTokens is the number of tokens of one key in every request.
	KeyTokens() int
	// Source starts a run. It fails on invalid options.
	Source(opt Options) (Source, error)
}

// Source hands out the requests of one run in order of time. Not safe for concurrent use.
type Source interface {
	// Peek returns when the next known request is due. With ok false none is known; reports to Done
	// may add more, so a run ends when ok is false and no request is outstanding.
	Peek() (at time.Duration, ok bool)
	// Next returns that request, or nil. The caller owns it, but its slices may be shared and must
	// not be written to.
	Next() *Request
	// Done reports the end of r, successful or not; call it once for every request. Generated
	// sessions derive their next turn from it, due no earlier than at; traces ignore it.
	Done(r *Request, at time.Duration)
	// Total is the number of requests of the run, or 0 if unknown.
	Total() int
	// Span is the time of the last possible arrival; 0 if unknown.
	Span() time.Duration
}

// Request is one request as it reaches the fleet.
type Request struct {
	Index   int           // 0, 1, ... in the order handed out
	At      time.Duration // arrival, since the start of the run
	Session int           // dense from 0; -1 without a session
	Turn    int           // position in the session, from 1; 0 if unknown

	// Keys name the full blocks of the prompt, root to leaf. Each stands for KeyTokens tokens and
	// all before: two requests have equal keys at a position exactly if their prompts are equal up
	// to its end.
	Keys []uint64
	// OutKeys continue Keys over the blocks that the output completes. Empty for all traces, which
	// do not contain outputs.
	OutKeys []uint64

	KeyTokens    int
	PromptTokens int // at least len(Keys) * KeyTokens, and at least 1
	OutputTokens int // at least 1

	Model        string // "": any engine serves it; keys of two models never match
	NonStreaming bool   // the client gets the whole answer at its end

	segments []Segment
	tail     uint64 // names the tokens after the last full block
}

// Options shape one run. The zero value is the whole workload as recorded. The tags are those of
// command line flags.
type Options struct {
	// Speed divides a trace's time stamps, or multiplies a generator's session rate; think times
	// stay, because they are people's. 0 means 1.
	Speed float64 `name:"speed" default:"1" placeholder:"X" group:"workload" help:"How many times faster than recorded; for generated sessions, how many times more of them."`
	// Duration is in time of the run (after Speed). 0: no limit for traces, the preset's own for generators.
	Duration time.Duration `name:"duration" placeholder:"DURATION" group:"workload" help:"Leave out requests that arrive later. Default for generated sessions: 3m."`
	Requests int           `name:"requests" placeholder:"N" group:"workload" help:"End after this many requests."` // 0: no limit
	// Seed decides arrivals, lengths, think times, and the spread of coarse time stamps.
	Seed uint64 `name:"seed" default:"1" placeholder:"N" group:"workload" help:"Seed of all random choices. Equal seeds give equal runs."`
	// Backends scales a generator's session rate to that number of backends, so that the load on
	// each stays the preset's. 0 leaves the rate; traces ignore it.
	Backends int
}

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

// mix joins a value to a running 64-bit state with one round of the splitmix64 finaliser. It is not
// cryptographic.
func mix(state, v uint64) uint64 {
	x := state ^ (v+0x9e3779b97f4a7c15)*0xff51afd7ed558ccd
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
