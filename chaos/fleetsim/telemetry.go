package fleetsim

import (
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// telemetry makes every node read every engine's load once per interval. The reads are spread evenly
// over the interval, engine by engine, and take no time, so what a node knows is up to an interval old.
type telemetry struct {
	every time.Duration // 0: never
	reads int64         // so far
}

// pass makes the reads that are due. Nothing has happened since the last event, so late reads see what
// those in time would have seen.
func (t *telemetry) pass(now time.Duration, nodes []node, e *engines) {
	if t.every == 0 {
		return
	}
	all := int64(len(nodes) * len(e.models))
	for {
		round, turn := t.reads/all, t.reads%all
		at := time.Duration(round)*t.every + time.Duration(float64(turn)/float64(all)*float64(t.every))
		if at > now {
			return
		}
		t.reads++
		id := int(turn) / len(nodes)
		r := nodes[int(turn)%len(nodes)].router
		r.SetTelemetry(prefixtree.Backend(id), e.telemetry(id, clock(at)))
		r.SetAdapters(prefixtree.Backend(id), e.models[id].Config().AdapterSlots, e.adapters(id), clock(at))
	}
}

// telemetry is what SGLang reports of an engine.
func (e *engines) telemetry(id int, at prefixtree.Time) policy.Telemetry {
	m := e.models[id]
	s := m.Stats()
	return policy.Telemetry{
		At: at, Running: s.Running, Waiting: s.Waiting, KVUsage: float64(s.KVUsed-s.KVEvictable) / float64(s.KVTokens),
		Queued: int64(e.waiting[id] + m.Prefilling()), Prefilled: s.PrefillTokens, PrefillTime: s.PrefillBusy,
	}
}
