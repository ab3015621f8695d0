package policy

import (
	"math"
	"slices"

	"grapevine/prefixtree"
)

// Names of the built-in strategies.
const (
	Prefix       = "prefix"
	PrefixHash   = "prefix-hash"
	LeastRequest = "least-request"
	Session      = "session"
	RoundRobin   = "round-robin"
	Random       = "random"
	Weighted     = "weighted"
)

// Strategies returns the names of the built-in strategies, the default first.
func Strategies() []string { return slices.Clone(builtin) }

var builtin = []string{Prefix, PrefixHash, LeastRequest, Session, RoundRobin, Random, Weighted}

// Strategy chooses among the eligible backends of one request. Choose is called by many goroutines at once, must not keep
// the scene, block or allocate, and returns an index into s.Candidates (never empty) and the rung that decided. It
// should set the Cost of every candidate it weighed (any unit, lower is better), which the receipt shows.
type Strategy interface {
	Choose(s *Scene) (int, Rung)
}

// Rung is the step of the degradation ladder that made a decision.
type Rung uint8

// The ladder, best first.
const (
	Cache  Rung = iota // knowledge of what a backend holds
	Hot                // agreed replica set of a hot prefix
	Hash               // rendezvous of the prompt or the session
	Load               // least loaded
	Rotate             // nothing known: in turn
	rungs
)

var rungNames = [rungs]string{"cache", "hot", "hash", "load", "rotate"}

// String returns the rung's name as receipts, headers and metrics show it.
func (r Rung) String() string {
	if r < rungs {
		return rungNames[r]
	}
	return "unknown"
}

// MarshalText makes receipts show the name.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Candidate is one eligible backend as a strategy sees it. Loads are those at the time of the Pick; tokens are estimates.
type Candidate struct {
	Backend     prefixtree.Backend
	HeldBlocks  int32   // leading blocks with a known placement
	Weight      float64 // above 0
	Rate        float64 // prefill tokens/s, learned or the fleet's prior; above 0
	OwnQueued   float64 // prefill tokens of this node to be computed before a new request; see slot.queued
	Queued      float64 // the same of all nodes, as far as reported
	Overdue     float64 // seconds by which the running prefill is late; see slot.queued
	Outstanding int64   // prefill tokens charged and not released, all nodes
	Active      int64   // requests that have not ended, all nodes
	OwnActive   int64   // of these, this node's
	Resident    int64   // prompt and output tokens of own active requests
	KVTokens    int     // capacity of the KV cache; 0 unknown
	Held        float64 // tokens of the prompt expected in its cache
	Uncached    float64 // tokens of the prompt it would have to compute; at least 1
	Age         int64   // milliseconds since the deepest held block was touched
	Cost        float64 // set by the strategy; +Inf for a backend it did not consider

	slot     *slot
	key      uint64
	queue    float64 // Queued as far as it is believed; set by prefix
	crowd    float64 // Active likewise
	inferred float64 // Queued by placements; 0 if not inferred
	at       int32   // entry of the pool
	rank     float32 // in a selection: of the order that led to it; unranked for none
	half     bool    // may only be given a trial request

	// See easeIn, which sets these three. With outside they fit into the word of half.
	turnedAway, charged bool // charged: the request comes off its credit
	outside             bool // of the replica set of the hot prefix; see gather
	warmth              float32
}

// KVUsage returns the share of the KV cache in use, 0 to 1: by the engine's own report, else by the own active
// requests, 0 if neither is known.
func (c *Candidate) KVUsage() float64 {
	if t := c.slot.telemetry.Load(); t != nil {
		return min(max(t.KVUsage, 0), 1)
	}
	if c.KVTokens > 0 {
		return min(float64(c.Resident)/float64(c.KVTokens), 1)
	}
	return 0
}

func (c *Candidate) holdsAdapter(name uint64) bool {
	c.slot.mu.Lock()
	defer c.slot.mu.Unlock()
	return c.slot.adapters.has(name)
}

// Scene is everything one decision may depend on. It belongs to the Pick; a strategy may write the candidates' Cost only.
type Scene struct {
	Request        *Request
	Now            prefixtree.Time
	Candidates     []Candidate // in view order, without the excluded and the avoided; a selection in a large pool; never empty
	PromptTokens   int         // estimated; at least 1
	TokensPerBlock float64
	Branch         prefixtree.Hash // branch key; 0 without hashes
	CommonTokens   float64         // leading tokens of the prompt that are common property of the fleet, at most PromptTokens
	FleetRate      float64         // prefill tokens/s over all backends; above 0
	HoldSeconds    float64         // mean time a request keeps its memory after the first token
	Nodes          int             // routers in the fleet, at least 1
	Staleness      int64           // milliseconds by which other nodes' load is known late
	FactStaleness  int64           // the same of their placements
	HotAnchor      prefixtree.Hash // of the deepest prefix of the prompt that is agreed to be hot; 0 for none
	Replicas       int             // the backends that are agreed to hold it; 0 for none

	matches  prefixtree.Matches
	where    []int32   // pool entry -> candidate index, -1 for none; see candidate
	lows     []int32   // entries of a large pool with the least work, the least first
	ranks    []float64 // memory for gather
	common   int       // leading blocks that are common property
	known    int32     // leading blocks of the longest match, on any backend
	pool     *pool
	model    *modelStat
	nameless bool   // the prompt is common property to its end
	judged   bool   // enough requests have been seen to tell what is common
	weighted bool   // candidates differ in weight
	inferred bool   // the load of other nodes is inferred from their placements
	sampled  bool   // the candidates are a selection; then what is below is set
	turn     uint64 // of the pool
	scanned  bool   // the choice has been made, the only candidate, by this rung
	rung     Rung
	overview overview
	outlook  outlook
	outsight outsight
	rand     uint64
	peek     bool // Explain: nothing may change
}

// Rand returns the next number of this decision's own deterministic sequence.
func (s *Scene) Rand() uint64 {
	s.rand += 0x9e3779b97f4a7c15
	return mix(s.rand)
}

// Turn returns the next turn of the model's rotation.
func (s *Scene) Turn() uint64 {
	if s.peek {
		return s.pool.turn.Load()
	}
	return s.pool.turn.Add(1) - 1
}

// Rendezvous returns candidate i's rank for key; the highest comes first. All nodes agree on it.
func (s *Scene) Rendezvous(key uint64, i int) float64 {
	c := &s.Candidates[i]
	return rendezvous(key, c.key, c.Weight, s.pool.weighted)
}

// place is Rendezvous for the key that orders the scene: in a selection all know their place.
func (s *Scene) place(key uint64, i int) float64 {
	if s.sampled {
		return float64(s.Candidates[i].rank)
	}
	return s.Rendezvous(key, i)
}

// firstAmong returns, of the candidates with that cost, the first in rendezvous order of the key, or the next in turn
// without one (0); and whether there were several.
func (s *Scene) firstAmong(cost float64, key uint64) (int, bool) {
	best, rank, n := 0, math.Inf(-1), 0
	for i := range s.Candidates {
		if s.Candidates[i].Cost != cost {
			continue
		}
		if n++; n == 1 {
			best = i
			continue
		}
		if key == 0 {
			continue
		}
		if n == 2 {
			rank = s.place(key, best)
		}
		if r := s.place(key, i); r > rank {
			best, rank = i, r
		}
	}
	if n < 2 || key != 0 {
		return best, n > 1
	}
	nth := int(s.Turn() % uint64(n))
	for i := range s.Candidates {
		if s.Candidates[i].Cost == cost {
			if nth == 0 {
				return i, true
			}
			nth--
		}
	}
	return best, true
}
