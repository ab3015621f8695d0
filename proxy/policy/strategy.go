package policy

import (
	"math"
	"slices"

	"grapevine/prefixtree"
)

const (
	Prefix       = "prefix"
	PrefixHash   = "prefix-hash"
	LeastRequest = "least-request"
	Session      = "session"
	RoundRobin   = "round-robin"
	Random       = "random"
	Weighted     = "weighted"
)

func Strategies() []string { return slices.Clone(builtin) }

var builtin = []string{Prefix, PrefixHash, LeastRequest, Session, RoundRobin, Random, Weighted}

// Strategy chooses among eligible backends. Choose runs concurrently and must not keep the scene,
// block or allocate. It returns an index into s.Candidates, which is never empty, and the rung that
// decided, and sets the Cost of weighed candidates (any unit, lower is better).
type Strategy interface {
	Choose(s *Scene) (int, Rung)
}

// Rung is the kind of knowledge that made a decision.
type Rung uint8

// Rungs, best first.
const (
	Cache Rung = iota // what backends hold
	Hot               // replica set of a hot prefix
	Hash              // rendezvous order of the prompt or session
	Load
	Rotate // round robin without knowledge
	rungs
)

var rungNames = [rungs]string{"cache", "hot", "hash", "load", "rotate"}

func (r Rung) String() string {
	if r < rungs {
		return rungNames[r]
	}
	return "unknown"
}

func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Candidate is one eligible backend at the time of Pick; tokens are estimates.
type Candidate struct {
	Backend     prefixtree.Backend
	HeldBlocks  int32 // leading blocks with a known placement
	Weight      float64
	Rate        float64 // prefill tokens/s, learned or the prior; above 0
	OwnQueued   float64 // own prefill tokens in front of a new request
	Queued      float64 // OwnQueued plus what other nodes report
	Overdue     float64 // seconds; see slot.queued
	Outstanding int64   // charged prefill tokens of all nodes
	Active      int64   // requests of all nodes
	OwnActive   int64
	Resident    int64   // prompt and output tokens of own active requests
	KVTokens    int     // capacity of the KV cache; 0: unknown
	Held        float64 // prompt tokens expected in its cache
	Uncached    float64 // prompt tokens to compute; at least 1
	Age         int64   // ms since the deepest held block was touched
	Cost        float64 // set by the strategy; +Inf if ruled out

	slot  *slot
	key   uint64
	queue float64 // expected queue; set by outsight.weigh
	crowd float64 // expected active requests; likewise
	at    int32
	rank  float32 // rank in the order that selected it, or unranked
	half  bool

	// easeIn sets turnedAway, charged and warmth. With outside they fit into the word of half.
	turnedAway, charged bool // charged: the request costs credit
	outside             bool // outside the hot prefix's replica set; see gather
	warmth              float32
}

// KVUsage returns the used share of the KV cache, 0 to 1: the engine's report, else an estimate
// from own requests, else 0.
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

// Scene is the input of one decision. A strategy may write only the Cost of candidates.
type Scene struct {
	Request        *Request
	Now            prefixtree.Time
	Candidates     []Candidate // eligible backends in view order, or a selection of a large pool
	PromptTokens   int         // estimated; at least 1
	TokensPerBlock float64
	Branch         prefixtree.Hash // branch key; 0 without hashes
	CommonTokens   float64         // leading tokens that are common in the fleet, at most PromptTokens
	FleetRate      float64         // prefill tokens/s over all backends; above 0
	HoldSeconds    float64         // mean time a request keeps its memory after the first token
	Nodes          int             // routers in the fleet, at least 1
	Staleness      int64           // ms; age of the other nodes' reports, at most maxStaleness
	HotAnchor      prefixtree.Hash // deepest agreed hot prefix of the prompt; 0: none
	Replicas       int

	matches  prefixtree.Matches
	where    []int32 // pool entry -> candidate index, -1: none; see candidate
	ranks    []float64
	common   int   // leading blocks that are common
	known    int32 // leading blocks of the longest match on any backend
	pool     *pool
	model    *modelStat
	nameless bool       // the whole prompt is common
	judged   bool       // enough requests were seen to judge what is common
	sampled  bool       // the candidates are a selection
	turn     uint64     // decision number in the pool
	stats    *poolStats // of a large pool
	outlook  outlook
	outsight outsight
	rand     uint64
	peek     bool // Explain: change nothing
}

// Rand returns the next number of this decision's deterministic sequence.
func (s *Scene) Rand() uint64 {
	s.rand += 0x9e3779b97f4a7c15
	return mix(s.rand)
}

// Turn returns the next turn of the pool's rotation.
func (s *Scene) Turn() uint64 {
	if s.peek {
		return s.pool.turn.Load()
	}
	return s.pool.turn.Add(1) - 1
}

// Rendezvous returns candidate i's rank for key, the same on all nodes; the highest wins.
func (s *Scene) Rendezvous(key uint64, i int) float64 {
	c := &s.Candidates[i]
	return rendezvous(key, c.key, c.Weight, s.pool.weighted)
}

// place is Rendezvous for the order key, which already ranks a selection.
func (s *Scene) place(key uint64, i int) float64 {
	if s.sampled {
		return float64(s.Candidates[i].rank)
	}
	return s.Rendezvous(key, i)
}

// firstAmong returns the first candidate of that cost in the key's order, or in turn if key is 0,
// and whether others tie.
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
