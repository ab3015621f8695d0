package scenario

import (
	"fmt"
	"slices"
	"strings"
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

const resourcesBound = 20 * time.Second

var resourcesReturn = Invariant{
	Name:    "resources-return",
	Promise: "memory, goroutines and descriptors return to what they were, and do not grow with what a process has served",
	Bound:   "20 s after the last request ended; a quarter and 40 goroutines, 40 descriptors, 16 MiB of live heap, 48 MiB resident above the most that any node held under load before the faults. Heap is what lives; tables of tree and journal do not count, which fill for minutes",
	Seen: "each node's own metrics of its process, every two seconds. A process that lived through three minutes or more has grown if the median of its last quarter " +
		"is above that of its second by more than a tenth and 4 MiB of live heap, 16 MiB resident, 20 goroutines or descriptors",
	judge: judgeResources,
}

func judgeResources(e *evidence) (f finding) {
	most := make([]float64, len(measures)) // before the faults
	known := false
	for _, s := range e.seen {
		for _, r := range s.usage {
			if r.at < e.calm || r.at > e.struck {
				continue
			}
			known = true
			for i, m := range measures {
				most[i] = max(most[i], m.of(&r))
			}
		}
	}
	lived := e.growth(&f)
	if !known || e.struck >= e.stopped {
		return f
	}
	for _, name := range e.nodes {
		r, ok := e.quiet.after[name]
		if !ok {
			continue
		}
		f.checked++
		for i, m := range measures {
			if is := m.of(&r); is > most[i]*(1+slackShare)+m.slack {
				f.violate(r.at, name, "%.1f %s, %.1f at most before", is/m.unit, m.what, most[i]/m.unit)
			}
		}
	}
	var before []string
	for i, m := range measures {
		before = append(before, fmt.Sprintf("%.4g %s", most[i]/m.unit, m.what))
	}
	f.note = "before, at most: " + strings.Join(before, ", ") + lived
	return f
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
