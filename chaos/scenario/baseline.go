package scenario

import (
	"fmt"
	"slices"
	"time"
)

// Invariants about the return to the state before the faults.

const countsBound = 5 * time.Second

var countsReturn = Invariant{
	Name:    "counts-return",
	Promise: "counts of what is under way return to zero at every node, about every engine, and at the engines",
	Bound:   "5 s after the last request ended",
	Seen:    "in_flight of GET /status; active, fleet_active and prefill_tokens of GET /backends; the engines' own running and waiting",
	judge: func(e *evidence) (f finding) {
		f.checked = e.quiet.counted
		f.note = fmt.Sprintf("zero after %.2f s", e.quiet.zero.Seconds())
		for _, left := range e.quiet.left {
			f.violate(e.drained+e.quiet.zero, left.place, "%s", left.what)
		}
		return f
	},
}

// Slack above the nodes' resources before the faults under the same load, for connections that have
// not timed out and uncollected garbage.
const (
	slackGoroutines = 40
	slackFiles      = 40
	slackHeap       = 16 << 20
	slackResident   = 48 << 20
	slackShare      = 0.25
	resourcesBound  = 20 * time.Second
)

var resourcesReturn = Invariant{
	Name:    "resources-return",
	Promise: "memory, goroutines and descriptors return to what they were, and do not grow with what a process has served",
	Bound:   "20 s after the last request ended; a quarter and 40 goroutines, 40 descriptors, 16 MiB of live heap, 48 MiB resident above the most that any node held under load before the faults. Heap is what lives; tables of tree and journal do not count, which fill for minutes",
	Seen: "each node's own metrics of its process, every two seconds. A process that lived through three minutes or more has grown if the median of its last quarter " +
		"is above that of its second by more than a tenth and 4 MiB of live heap, 16 MiB resident, 20 goroutines or descriptors",
	judge: judgeResources,
}

func judgeResources(e *evidence) (f finding) {
	var most resources
	for _, s := range e.seen {
		for _, r := range s.usage {
			if r.at < e.calm || r.at > e.struck {
				continue
			}
			most.at = r.at
			most.goroutines, most.files = max(most.goroutines, r.goroutines), max(most.files, r.files)
			most.heap, most.resident = max(most.heap, r.heap), max(most.resident, r.resident)
		}
	}
	lived := e.growth(&f)
	if most.at == 0 || e.struck >= e.stopped {
		return f
	}
	for _, name := range e.nodes {
		r, ok := e.quiet.after[name]
		if !ok {
			continue
		}
		f.checked++
		for _, over := range most.exceeded(r) {
			f.violate(r.at, name, "%s", over)
		}
	}
	f.note = fmt.Sprintf("before, at most: %.0f goroutines, %.0f descriptors, %.1f MiB live heap, %.1f MiB resident", most.goroutines, most.files, most.heap/(1<<20), most.resident/(1<<20)) + lived
	return f
}

func (before *resources) exceeded(r resources) (out []string) {
	for _, c := range []struct {
		what       string
		was, is    float64
		slack, per float64
	}{
		{"goroutines", before.goroutines, r.goroutines, slackGoroutines, 1}, {"descriptors", before.files, r.files, slackFiles, 1},
		{"MiB of live heap", before.heap, r.heap, slackHeap, 1 << 20}, {"MiB resident", before.resident, r.resident, slackResident, 1 << 20},
	} {
		if c.is > c.was*(1+slackShare)+c.slack {
			out = append(out, fmt.Sprintf("%.1f %s, %.1f at most before", c.is/c.per, c.what, c.was/c.per))
		}
	}
	return out
}

var nodesLive = Invariant{
	Name:    "nodes-live",
	Promise: "no node ends by itself, whatever is done to it; one that is asked to stop does, in order, and one that is started is ready soon",
	Bound:   "ends within 60 s, ready within 30 s",
	Seen:    "the processes and their exit codes, and whether what the schedule says could be done and undone",
	judge: func(e *evidence) (f finding) {
		f.checked = len(e.nodes)
		f.violations = slices.Clone(e.died)
		for i := range e.marks {
			if m := &e.marks[i]; m.Failed != "" {
				f.violate(m.Over, m.Event.String(), "%s", m.Failed)
			}
		}
		return f
	},
}
