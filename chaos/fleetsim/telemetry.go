package fleetsim

import (
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
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
// over the interval, engine by engine, and each takes a delay, so what a node knows is up to an interval and the delay old.
type readings struct {
	kind  Telemetry
	every time.Duration // 0: never
	delay time.Duration
	reads int64     // so far
	way   []reading // in order of time
}

type reading struct {
	at           time.Duration // of the engine's report
	engine, node int
	load         books.Telemetry
	adapters     []string
}

func newReadings(cfg *Config, nodes int) readings {
	r := readings{kind: cfg.Telemetry, delay: cfg.TelemetryDelay}
	switch cfg.Telemetry {
	case VLLM:
		r.every = engine.PollInterval(5*time.Second, len(cfg.Engines), nodes)
	case SGLang:
		r.every = engine.PollInterval(time.Second, len(cfg.Engines), nodes)
	}
	return r
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
			break
		}
		r.reads++
		id := int(turn) / len(nodes)
		r.way = append(r.way, reading{at, id, int(turn) % len(nodes), e.telemetry(r.kind, id, clock(at)), e.adapters(id)})
	}
	n := 0
	for ; n < len(r.way) && r.way[n].at+r.delay <= now; n++ {
		x, id := &r.way[n], prefixtree.Backend(r.way[n].engine)
		nodes[x.node].router.SetTelemetry(id, x.load)
		nodes[x.node].router.SetAdapters(id, e.models[x.engine].Config().AdapterSlots, x.adapters, clock(x.at))
	}
	r.way = r.way[n:]
}

func (e *engines) telemetry(kind Telemetry, id int, at prefixtree.Time) books.Telemetry {
	m := e.models[id]
	s := m.Stats()
	t := books.Telemetry{
		At: at, Running: s.Running, Waiting: s.Waiting, KVUsage: float64(s.KVUsed-s.KVEvictable) / float64(s.KVTokens),
		Queued: -1, Prefilled: s.ComputedTokens, PrefillTime: s.PrefillTime, Prefills: s.Finished,
		FirstTokens: s.FirstTokens, FirstComputed: s.FirstComputed,
	}
	if kind == SGLang {
		t.FirstTokens, t.FirstComputed = 0, 0
		t.Prefills, t.Queued, t.Prefilled, t.PrefillTime = 0, int64(e.waiting[id]+m.Prefilling()), s.PrefillTokens, s.PrefillBusy
	}
	return t
}
