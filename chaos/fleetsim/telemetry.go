package fleetsim

import (
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
)

// Telemetry is what engines report of their load, as grapevine reads it by default.
type Telemetry string

const (
	NoTelemetry Telemetry = "none"
	// VLLM: requests; uncached prompt tokens and prefill times of finished requests; every 5 s.
	VLLM Telemetry = "vllm"
	// SGLang: requests; uncached tokens in the queue, prompt tokens computed and the time; every second.
	SGLang Telemetry = "sglang"
)

// Telemetries are all kinds.
var Telemetries = []Telemetry{VLLM, SGLang, NoTelemetry}

// readings makes every node read every engine's load once per interval. The reads are spread evenly
// over the interval, engine by engine, and take no time, so what a node knows is up to an interval old.
type readings struct {
	kind  Telemetry
	every time.Duration // 0: never
	reads int64         // so far
}

func newReadings(kind Telemetry, engines, nodes int) readings {
	switch kind {
	case VLLM:
		return readings{kind: kind, every: engine.PollInterval(5*time.Second, engines, nodes)}
	case SGLang:
		return readings{kind: kind, every: engine.PollInterval(time.Second, engines, nodes)}
	}
	return readings{}
}

// pass makes the reads that are due. Nothing has happened since the last event, so late reads see what
// those in time would have seen.
func (r *readings) pass(now time.Duration, nodes []node, e *engines) {
	if r.every == 0 {
		return
	}
	all := int64(len(nodes) * len(e.models))
	for {
		round, turn := r.reads/all, r.reads%all
		at := time.Duration(round)*r.every + time.Duration(float64(turn)/float64(all)*float64(r.every))
		if at > now {
			return
		}
		r.reads++
		id := int(turn) / len(nodes)
		router := nodes[int(turn)%len(nodes)].router
		router.SetTelemetry(prefixtree.Backend(id), e.telemetry(r.kind, id, clock(at)))
		router.SetAdapters(prefixtree.Backend(id), e.models[id].Config().AdapterSlots, e.adapters(id), clock(at))
	}
}

func (e *engines) telemetry(kind Telemetry, id int, at prefixtree.Time) policy.Telemetry {
	m := e.models[id]
	s := m.Stats()
	t := policy.Telemetry{
		At: at, Running: s.Running, Waiting: s.Waiting, KVUsage: float64(s.KVUsed-s.KVEvictable) / float64(s.KVTokens),
		Queued: -1, Prefilled: s.ComputedTokens, PrefillTime: s.PrefillTime, Prefills: s.Finished,
	}
	if kind == SGLang {
		t.Prefills, t.Queued, t.Prefilled, t.PrefillTime = 0, int64(e.waiting[id]+m.Prefilling()), s.PrefillTokens, s.PrefillBusy
	}
	return t
}
