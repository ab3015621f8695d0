package scenario

import (
	"fmt"
	"time"

	"grapevine/chaos/history"
)

// judgeWithin bounds the search for an order of the history.
const judgeWithin = time.Minute

var membershipKept = Invariant{
	Name:    "membership-kept",
	Promise: "a change of the membership that was confirmed is never lost, and what was refused never happens: reads and changes through any node are those of one store",
	Bound:   "always; a change that fails says so within 5 s",
	Seen:    "the history of what operators asked random nodes and were told, judged by porcupine; it ends with a read of everything through every node",
	judge: func(e *evidence) (f finding) {
		f.violations = append(f.violations, e.strange...)
		for _, op := range e.history {
			out := op.Output.(history.Output)
			if op.Input.(history.Input).Kind != opRead && !out.Refused && !out.Unknown && op.ClientId < finalClient {
				f.checked++
			}
		}
		judged := e.judged()
		v := history.Judge(judged, judgeWithin)
		f.note = fmt.Sprintf("%d operations, %s", len(judged), v.Result)
		if !v.OK() {
			f.violate(e.drained, "the fleet", "the history of %d operations is %s", len(e.history), v.Result)
		}
		if f.checked <= len(e.engines) { // the engines it began with
			f.checked = 0
		}
		return f
	},
}

// judged are the operations that count. A node that starts adds the engines of its configuration that the fleet does not have (docs/operate.md: who
// removes an engine takes it from the configurations, too, which the harness does not), so what happens to an engine that was removed while a node
// was started is not for operators alone to say.
func (e *evidence) judged() (out []history.Operation) {
	added := make(map[string]bool)
	for i := range e.marks {
		m := &e.marks[i]
		if m.Kind != "remove" {
			continue
		}
		for j := range e.marks {
			if n := &e.marks[j]; n.starts() && n.during(m.Began, m.Over, settle) {
				for _, engine := range m.Event.members() {
					added[engine] = true
				}
			}
		}
	}
	for _, op := range e.history {
		if !added[op.Input.(history.Input).Backend] {
			out = append(out, op)
		}
	}
	return out
}

var oneLeader = Invariant{
	Name:    "one-leader-per-term",
	Promise: "in one term of the agreement all nodes name the same leader, and one node at most leads",
	Bound:   "always",
	Seen:    "GET /raft of every node, several times a second",
	judge: func(e *evidence) (f finding) {
		type claim struct{ node, id string }
		leads := make(map[uint64]claim)
		for _, name := range e.nodes {
			for _, s := range e.seen[name].raft.list {
				id := s.what.leader
				if s.what.role == "leader" {
					id = s.what.id
				}
				if id == "" {
					continue
				}
				before, ok := leads[s.what.term]
				if !ok {
					leads[s.what.term] = claim{name, id}
					f.checked++
				} else if before.id != id {
					f.violate(s.first.answered, name, "in term %d it names %s, and %s names %s", s.what.term, id, before.node, before.id)
				}
			}
		}
		f.note = fmt.Sprintf("%d terms with a leader", len(leads))
		return f
	},
}
