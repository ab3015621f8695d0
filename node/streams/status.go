package streams

import (
	"grapevine.example/node/backends"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/engine/ledger"
)

// Values of Status.Known.
const (
	Exact     = "exact"     // this node follows the engine's events
	Degraded  = "degraded"  // it does, and events are lost: what the engine has not used since is predicted
	Reported  = "reported"  // other nodes do, and tell what was evicted
	Predicted = "predicted" // from placements and reported cached tokens
)

// Status is how a node knows an engine's cache.
type Status struct {
	Known     string
	Why       string   // why not exact
	Followers []string // nodes that follow the engine; empty: none
	Following bool     // this node is one of them; otherwise the rest is 0
	// Totals since this node began to follow the engine, except Blocks, Points and Early.
	ledger.Stats
	Batches, Missing, Resets, Refused int64
}

// Status returns how this node knows the cache of an engine.
func (s *Streams) Status(e *backends.Engine) Status {
	st := s.stream(e.ID)
	if st == nil || st.url != e.URL {
		s.mu.Lock()
		defer s.mu.Unlock()
		f, asked := s.found[e.Key]
		switch {
		case s.Idle():
			return Status{Known: Predicted, Why: "events is off"}
		case !asked:
			return Status{Known: Predicted, Why: "the engine was not asked for its events yet"}
		}
		return Status{Known: Predicted, Why: f.why}
	}
	out := Status{Known: Reported, Why: st.why, Followers: st.Followers}
	if st.why != "" {
		out.Known = Predicted
	}
	if st.own == nil {
		return out
	}
	n := &st.own.stream.Counters
	out.Following, out.Stats = true, st.own.ledger.Stats()
	out.Batches, out.Missing, out.Resets, out.Refused = n.Batches.Load(), n.Missing.Load(), n.Resets.Load(), n.Refused.Load()
	switch events.State(st.own.state.Load()) {
	case events.Live:
		out.Known = Exact
		return out
	case events.Degraded:
		out.Known = Degraded
	default:
		out.Known = Predicted
	}
	if cause := st.own.cause.Load(); cause != nil {
		out.Why = *cause
	}
	return out
}
