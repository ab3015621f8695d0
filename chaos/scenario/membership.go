package scenario

import (
	"fmt"
	"math"
	"slices"
	"time"

	"grapevine.example/chaos/history"
)

// judgeWithin bounds the search for an order of the history.
const judgeWithin = time.Minute

var membershipKept = Invariant{
	Name: "membership-kept",
	Promise: "a confirmed change of the membership is never lost, a refused one never happens: reads and changes through all nodes " +
		"are linearizable",
	Bound: "always; a running node answers an operator within 8 s",
	Seen: "operators' requests to random nodes and the answers, judged by porcupine; the history ends with a read of every backend " +
		"through every node",
	judge: func(e *evidence, f *finding) {
		for _, v := range e.strange {
			f.add(v)
		}
		e.answeredInTime(f)
		for _, op := range e.history {
			out := op.Output.(history.Output)
			if op.Input.(history.Input).Kind != history.Read && !out.Refused && !out.Unknown && op.ClientId < finalClient {
				f.checked++
			}
		}
		judged := e.judged()
		v := history.Judge(judged, judgeWithin)
		f.note = fmt.Sprintf("%d operations, %s", len(judged), v.Result)
		if !v.OK() {
			f.violate(e.drained, "the fleet", "the history of %d operations is %s", len(e.history), v.Result)
		}
		if f.checked <= len(e.engines) {
			f.checked = 0
		}
	},
}

// judged adds the nodes' own operations: a starting node adds the engines of its configuration that
// the fleet lacks (docs/operate.md), also removed ones. So every node that starts about a removal
// makes an addition of unknown outcome.
func (e *evidence) judged() []history.Operation {
	out := slices.Clone(e.history)
	client := starterClient
	for _, m := range e.marks {
		if m.Kind != "remove" {
			continue
		}
		for _, n := range e.marks {
			if !slices.Contains(startsNode, n.Kind) || !n.during(m.Began, m.Over, settle) {
				continue
			}
			for _, engine := range m.members() {
				for range n.members() {
					out = append(out, history.Operation{
						ClientId: client, Input: history.Input{Kind: history.Add, Backend: engine}, Output: history.Output{Unknown: true},
						Call: int64(max(n.Began, n.Ending)), Return: math.MaxInt64,
					})
					client++
				}
			}
		}
	}
	return out
}

func (e *evidence) answeredInTime(f *finding) {
	for _, v := range e.late {
		if !e.harmed(v.Place, slices.Concat(losesNode, startsNode), v.At-operationPatience, v.At) {
			f.add(v)
		}
	}
}

var oneLeader = Invariant{
	Name:    "one-leader-per-term",
	Promise: "all nodes name the same leader for a raft term, and at most one node leads in it",
	Bound:   "always",
	Seen:    "GET /raft of every node, several times a second",
	judge: func(e *evidence, f *finding) {
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
	},
}
