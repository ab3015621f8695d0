package scenario

import (
	"fmt"
	"slices"
	"time"
)

// drainNotice is how soon after SIGTERM readiness must fail.
const drainNotice = 250 * time.Millisecond

const warmEnough = 0.99

var readyIsTrue = Invariant{
	Name:    "ready-is-true",
	Promise: "a node is not ready while it starts or drains; a ready node has engines, the agreed state and its peers' facts",
	Bound:   "from 0.25 s after SIGTERM; from the first ready answer of a started node",
	Seen:    "GET /readyz over new connections, 20 times a second; GET /status after the first ready answer",
	judge: func(e *evidence, f *finding) {
		for i := range e.marks {
			e.draining(f, &e.marks[i])
		}
		for _, name := range e.nodes {
			s := e.seen[name]
			for pid, m := range s.first {
				if len(s.ready.list) > 0 && s.ready.list[0].what.pid == pid {
					continue // started before the run, with no peers to learn from
				}
				f.checked++
				e.started(f, name, &m)
			}
		}
	},
}

func (e *evidence) draining(f *finding, m *Mark) {
	for i, asked := range m.Steps {
		if asked.What != "asked to stop" {
			continue
		}
		gone := e.drained
		for _, s := range m.Steps[i+1:] {
			if s.Member == asked.Member && s.What == "gone" {
				gone = s.At
				break
			}
		}
		f.checked++
		for _, s := range e.seen[asked.Member].ready.list {
			if s.what.ready && s.last.asked > asked.At+drainNotice && s.last.asked < gone {
				f.violate(s.last.asked, asked.Member, "ready %v after it was asked to stop; it was gone after %v", s.last.asked-asked.At, gone-asked.At)
			}
		}
	}
}

func (e *evidence) started(f *finding, name string, m *meeting) {
	at := m.ready.answered
	switch {
	case m.err != "":
		f.checked--
	case m.status != "":
		f.violate(at, name, "ready, but its status says: %s", m.status)
	case m.backends == 0:
		f.violate(at, name, "ready without an engine")
	case !m.version && e.majority(at):
		f.violate(at, name, "ready without the state that the fleet has agreed on")
	case m.warm < warmEnough:
		f.violate(at, name, "ready with %.1f %% of its peers' facts", 100*m.warm)
	}
}

// majority reports whether a raft majority was unharmed at a time.
func (e *evidence) majority(at time.Duration) bool {
	harmed := 0
	for _, n := range e.nodes {
		if e.nodeLost(n, at, at) {
			harmed++
		}
	}
	return 2*harmed < len(e.nodes)
}

var nodesLive = Invariant{
	Name:    "nodes-live",
	Promise: "no node exits unasked; a node that is asked to stop exits with code 0, a started node becomes ready",
	Bound:   "exits within 60 s, ready within 30 s",
	Seen:    "the processes and their exit codes; events of the schedule that could not be carried out or undone",
	judge: func(e *evidence, f *finding) {
		f.checked = len(e.nodes)
		f.violations = slices.Clone(e.died)
		for i := range e.marks {
			if m := &e.marks[i]; m.Failed != "" {
				f.violate(m.Over, m.Event.String(), "%s", m.Failed)
			}
		}
	},
}

const countsBound = 5 * time.Second

var countsReturn = Invariant{
	Name:    "counts-return",
	Promise: "counts of running and waiting requests return to zero at every node, for every engine and client, and at the engines",
	Bound:   "5 s after the last request ended",
	Seen:    "in_flight of GET /status; active, fleet_active and prefill_tokens of GET /backends; GET /queue and /clients; the engines' own running and waiting",
	judge: func(e *evidence, f *finding) {
		f.checked = e.quiet.counted
		f.note = fmt.Sprintf("zero after %.2f s", e.quiet.zero.Seconds())
		for _, left := range e.quiet.left {
			left.At = e.drained + e.quiet.zero
			f.add(left)
		}
	},
}
