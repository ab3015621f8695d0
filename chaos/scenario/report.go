package scenario

import (
	"slices"
	"time"

	"grapevine.example/chaos/fleet"
)

type Result string

// Only Passed is a pass.
const (
	Passed Result = "passed"
	Failed Result = "failed"
	// Idle: no violation, but the run did not exercise all of Scenario.Must.
	Idle    Result = "proves nothing"
	Skipped Result = "skipped"
)

// Report is the result of a run. Times are seconds since the traffic began.
type Report struct {
	Scenario   string     `json:"scenario"`
	Proves     string     `json:"proves"`
	Result     Result     `json:"result"`
	Missing    []string   `json:"missing,omitempty"` // why it was skipped, or what was not exercised
	Violations int        `json:"violations"`
	Seed       uint64     `json:"seed"`
	Nodes      int        `json:"nodes"`
	Engines    int        `json:"engines"`
	Network    string     `json:"network"` // "namespaces", one for every member, or "loopback"
	DurationS  float64    `json:"duration_s"`
	Schedule   []string   `json:"schedule"`
	Command    string     `json:"command"` // repeats the run
	Requests   int        `json:"requests"`
	Attempts   int        `json:"attempts"`
	Outcomes   Outcomes   `json:"outcomes"`
	Verdicts   []Verdict  `json:"verdicts"`
	Events     []Happened `json:"events"`
	SliceS     float64    `json:"slice_s"` // length of a slice of the timeline
	Timeline   []Slice    `json:"timeline"`
	Harness    memoryUse  `json:"harness"` // memory of this process, engines and clients included
}

type Outcomes map[Outcome]int

// Happened is an event as carried out; OverS is null if it did not end.
type Happened struct {
	Event   string   `json:"event"`
	Members string   `json:"members"`
	BeganS  float64  `json:"began_s"`
	OverS   *float64 `json:"over_s"`
	Failed  string   `json:"failed,omitempty"`
}

// Slice is one or more seconds by time of sending. Figures without requests are null.
type Slice struct {
	FromS    float64  `json:"from_s"`
	Sent     int      `json:"sent"`
	Answered int      `json:"answered"` // in full
	Broken   int      `json:"failed"`
	Hit      *float64 `json:"hit"` // share of the possible
	TTFT50   *float64 `json:"ttft_p50_ms"`
	TTFT99   *float64 `json:"ttft_p99_ms"`
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1e3 }

func newReport(cfg *Config, s *Scenario) *Report {
	r := &Report{Scenario: s.Name, Proves: s.Proves, Seed: cfg.Seed, Nodes: cfg.Nodes, Engines: s.Engines, DurationS: seconds(cfg.Duration), Outcomes: make(Outcomes),
		Schedule: []string{}, Verdicts: []Verdict{}, Events: []Happened{}, Timeline: []Slice{}}
	r.Network = "loopback"
	if fleet.Isolated() {
		r.Network = "namespaces"
	}
	for _, e := range cfg.Schedule {
		r.Schedule = append(r.Schedule, e.String())
	}
	r.Command = cfg.command
	return r
}

func skipped(cfg *Config, s *Scenario, missing []string) *Report {
	r := newReport(cfg, s)
	r.Result, r.Missing = Skipped, missing
	return r
}

func (r *run) report(e *evidence) *Report {
	out := newReport(&r.cfg, r.s)
	out.Verdicts = judgeAll(e, r.cfg.LeaveOut)
	out.Result = Passed
	for _, v := range out.Verdicts {
		out.Violations += v.Count
		if v.State == NotExercised && slices.Contains(r.s.Must, v.Name) {
			out.Result = Idle
			out.Missing = append(out.Missing, v.Name+" was not exercised")
		}
	}
	if out.Violations > 0 {
		out.Result = Failed
	}
	out.Attempts, out.Requests, out.Outcomes, out.Harness = e.past.attempts, e.past.requests, e.past.outcomes, e.harness
	for i := range e.marks {
		out.Events = append(out.Events, happened(&e.marks[i]))
	}
	out.SliceS, out.Timeline = seconds(e.sliceWidth()), append(out.Timeline, e.past.slices...)
	return out
}

func happened(m *Mark) Happened {
	h := Happened{Event: m.Event.String(), Members: specOf(m.Kind).join(m.Members), BeganS: seconds(m.Began), Failed: m.Failed}
	if m.Over >= 0 {
		over := seconds(m.Over)
		h.OverS = &over
	}
	return h
}

// maxSlices is what a picture can show.
const maxSlices = 1200

func sliceOf(length time.Duration) time.Duration {
	return time.Second * max(1, (length+maxSlices*time.Second-1)/(maxSlices*time.Second))
}

func (e *evidence) sliceWidth() time.Duration { return max(e.width, time.Second) }

func (e *evidence) slices(p *past, to time.Duration) []Slice {
	from := p.until
	width := e.sliceWidth()
	out := make([]Slice, (to-from+width-1)/width)
	firsts := make([][]time.Duration, len(out))
	for i := range out {
		at := from + time.Duration(i)*width
		out[i].FromS = seconds(at)
		if s := p.hits(at, at+width); s.turns >= 2 {
			out[i].Hit = &s.mean
		}
	}
	for _, a := range e.attempts {
		// An attempt that a stalled harness recorded after its slice was folded counts in the first.
		i := max(0, min(int((a.Sent-from)/width), len(out)-1))
		out[i].Sent++
		switch {
		case a.Outcome == Complete:
			out[i].Answered++
		case a.failed():
			out[i].Broken++
		}
		if a.First >= 0 && a.Shape != chatWhole {
			firsts[i] = append(firsts[i], a.First-a.Sent)
		}
	}
	for i, f := range firsts {
		if len(f) == 0 {
			continue
		}
		slices.Sort(f)
		at := func(q float64) *float64 {
			ms := float64(f[min(len(f)-1, int(q*float64(len(f))))].Microseconds()) / 1e3
			return &ms
		}
		out[i].TTFT50, out[i].TTFT99 = at(0.5), at(0.99)
	}
	return out
}
