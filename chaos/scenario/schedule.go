package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

type Event struct {
	At   time.Duration // since the traffic began
	Kind string        // name of a fault
	// Groups are the members: two for link faults, at most one otherwise. LeaderName and
	// FollowerName are resolved when the event is due.
	Groups [][]string
	Params []Param
	For    time.Duration // until it is undone; 0: no end of its own
}

type Param struct{ Name, Value string }

// Schedule is in order of time. String and Parse are inverses.
type Schedule []Event

const (
	LeaderName   = "leader"   // the raft leader
	FollowerName = "follower" // a voter that does not lead
)

const maxEvents = 10_000

// ErrSchedule is wrapped by every error about the text of a schedule.
var ErrSchedule = errors.New("schedule")

// String is the event as a line of a schedule.
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(e.At.String() + " " + e.Kind)
	if len(e.Groups) > 0 {
		b.WriteString(" " + specOf(e.Kind).join(e.Groups))
	}
	for _, p := range e.Params {
		b.WriteString(" " + p.Name + "=" + p.Value)
	}
	if e.For > 0 {
		b.WriteString(" for " + e.For.String())
	}
	return b.String()
}

// String is the schedule as text, each line ended.
func (s Schedule) String() string {
	var b strings.Builder
	for _, e := range s {
		b.WriteString(e.String() + "\n")
	}
	return b.String()
}

// End is when the last event has been undone.
func (s Schedule) End() (end time.Duration) {
	for _, e := range s {
		end = max(end, e.At+e.For)
	}
	return end
}

func (s Schedule) sorted() Schedule {
	out := slices.Clone(s)
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return out
}

// Parse reads lines TIME FAULT [MEMBER,... [|or> MEMBER,...]] [NAME=VALUE...] [for DURATION], with
// comments (#). An error names its line and a correction.
func Parse(text string) (Schedule, error) {
	var out Schedule
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(out) == maxEvents {
			return nil, fmt.Errorf("%w: line %d: more than %d events", ErrSchedule, i+1, maxEvents)
		}
		e, err := parseEvent(fields)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrSchedule, i+1, err)
		}
		out = append(out, e)
	}
	return out.sorted(), nil
}

func parseEvent(fields []string) (e Event, err error) {
	if e.At, err = parseTime(fields[0]); err != nil {
		return e, fmt.Errorf("%w: begin the line with when it happens, as in 12.5s kill node-0", err)
	}
	if len(fields) == 1 {
		return e, fmt.Errorf("no fault: write one of %s", strings.Join(faultNames(), ", "))
	}
	e.Kind = fields[1]
	spec, ok := findSpec(e.Kind)
	if !ok {
		return e, fmt.Errorf("%q is not a fault: write one of %s", e.Kind, strings.Join(faultNames(), ", "))
	}
	rest := fields[2:]
	if n := len(rest); n >= 2 && rest[n-2] == "for" {
		if e.For, err = parseTime(rest[n-1]); err != nil || e.For == 0 {
			return e, fmt.Errorf("for %s: write a duration, as in for 10s", rest[n-1])
		}
		rest = rest[:n-2]
	}
	for len(rest) > 0 && strings.Contains(rest[len(rest)-1], "=") {
		name, value, _ := strings.Cut(rest[len(rest)-1], "=")
		e.Params = append(e.Params, Param{name, value})
		rest = rest[:len(rest)-1]
	}
	slices.Reverse(e.Params)
	if len(rest) > 0 {
		group := []string{}
		for _, word := range rest {
			if word == "|" || word == ">" {
				if word != spec.to.joint {
					return e, fmt.Errorf("%s: groups are not joined with %s: write %s", e.Kind, word, spec.usage())
				}
				e.Groups, group = append(e.Groups, group), []string{}
				continue
			}
			for name := range strings.SplitSeq(word, ",") {
				if name != "" {
					group = append(group, name)
				}
			}
		}
		e.Groups = append(e.Groups, group)
	}
	return e, spec.check(&e)
}

const maxTime = 7 * 24 * time.Hour

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("%q is not a time: write one like 12.5s or 1m30s", text)
	}
	return d, nil
}

func (e *Event) param(name string) string {
	for _, p := range e.Params {
		if p.Name == name {
			return p.Value
		}
	}
	for _, p := range specOf(e.Kind).params {
		if p.name == name {
			return p.def
		}
	}
	return ""
}

// number is a setting's checked value or default, 0 without the setting.
func (e *Event) number(name string) float64 {
	x, _ := strconv.ParseFloat(e.param(name), 64)
	return x
}

func (e *Event) duration(name string) time.Duration {
	d, _ := time.ParseDuration(e.param(name))
	return d
}

func (e *Event) members() (out []string) {
	for _, g := range e.Groups {
		out = append(out, g...)
	}
	return out
}
