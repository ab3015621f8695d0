package policy

import (
	"math"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

// Scene is the input of one decision. A strategy may write only Candidates' Cost.
type Scene struct {
	Request        *Request
	Now            prefixtree.Time
	Candidates     []Candidate // eligible backends in view order, or a selection of a large pool
	PromptTokens   int         // estimated; at least 1
	TokensPerBlock float64
	Branch         prefixtree.Hash // the first block behind the common ones; 0: none
	CommonTokens   float64         // leading tokens that are common in the fleet, at most PromptTokens
	FleetRate      float64         // prefill tokens/s over all backends; above 0
	Nodes          int             // routers in the fleet, at least 1
	Staleness      int64           // ms; age of what is known of the other nodes' work, at most maxStaleness
	FromEngines    bool            // the engines report that work; else the other nodes do

	matches  prefixtree.Matches // also of backends outside the pool
	where    []int32            // pool entry -> candidate index, -1: none; see candidate
	known    int                // leading blocks that any engine holds
	truth    Truth              // may be nil
	lookups  int                // of what backends report to hold
	latest   int                // entry of the pool, see Truth.Latest; -1: none
	pool     *pool
	alone    entry     // the candidate of a stored conversation
	hot      HotPrefix // deepest agreed hot prefix of the prompt; no replicas: none
	size     int       // the engines that Candidates stand for: more than these in a large pool
	traffic  demand.Rates
	later    float64 // seconds of other requests that a second of prefill costs
	zone     zone    // from where candidates are away
	zoneCost float64 // seconds; the price of another zone
	ways     bool    // a candidate has that price
	// everywhere is how many leading tokens count as held by every engine, at most CommonTokens: of the deepest popular prefix with an
	// engine's fair share of the requests.
	everywhere float64
	// slotTime is for how many seconds requests use the slots of their LoRA adapters.
	slotTime float64
	unseen   float64 // requests that other nodes have placed since their reports
	rand     uint64
	peek     bool // Explain: change nothing
	// wary: an engine failed the request, and it goes to none that failed a request since it last answered, if there is another: one that
	// refuses all it gets, and is not ejected, is always open, and would get each request that is sent once more.
	wary  bool
	gated bool // the request may wait
	open  int  // if so, candidates that are not full
}

// Rand returns the next number of this decision's sequence.
func (s *Scene) Rand() uint64 {
	s.rand += 0x9e3779b97f4a7c15
	return mix(s.rand)
}

func (s *Scene) Turn() uint64 {
	if s.peek {
		return s.pool.turn.Load()
	}
	return s.pool.turn.Add(1) - 1
}

// Rendezvous returns candidate i's rank for key, the same on all nodes; the highest wins.
func (s *Scene) Rendezvous(key uint64, i int) float64 {
	c := &s.Candidates[i]
	return rendezvous(key, c.key, c.weight, s.pool.weighted)
}

// firstAmong returns the first candidate of that cost in the key's order, in turn if key is 0, and
// whether others tie.
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
			rank = s.Rendezvous(key, best)
		}
		if r := s.Rendezvous(key, i); r > rank {
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

func (s *Scene) swap(i, j int) {
	if i != j {
		s.Candidates[i], s.Candidates[j] = s.Candidates[j], s.Candidates[i]
		s.where[s.Candidates[i].at], s.where[s.Candidates[j].at] = int32(i), int32(j)
	}
}

// keep leaves the candidates that stay, unless none does.
func (s *Scene) keep(stays func(*Candidate) bool) {
	n := 0
	for i := range s.Candidates {
		if stays(&s.Candidates[i]) {
			s.swap(i, n)
			n++
		}
	}
	if n > 0 {
		s.Candidates = s.Candidates[:n]
	}
}

// candidate returns the candidate of a pool entry; nil if it is none, or at is negative.
func (s *Scene) candidate(at int) *Candidate {
	if at < 0 {
		return nil
	}
	// A large pool does not clear where.
	if i := s.where[at]; i >= 0 && int(i) < len(s.Candidates) && s.Candidates[i].at == int32(at) {
		return &s.Candidates[i]
	}
	return nil
}

func (s *Scene) promptBytes(blockBytes int) int {
	return max(s.Request.PromptBytes, len(s.Request.Hashes)*blockBytes)
}

// Candidate is one eligible backend; tokens are estimates.
type Candidate struct {
	*entry
	Backend     prefixtree.Backend
	HeldBlocks  int32   // leading blocks with a known placement
	Rate        float64 // prefill tokens/s, learned or the prior; above 0
	OwnQueued   float64 // own prefill tokens in front of a new request
	Queued      float64 // OwnQueued plus what other nodes report
	Overdue     float64 // seconds; see books.Engine.Queued
	Outstanding int64   // charged prefill tokens of all nodes
	Active      int64   // requests of all nodes
	OwnActive   int64
	Held        float64 // prompt tokens expected in its cache
	Uncached    float64 // prompt tokens to compute; at least 1
	Age         int64   // ms since the deepest held block was touched
	Cost        float64 // set by the strategy; +Inf if ruled out

	wait    float64 // seconds until its queue is done
	parked  float64 // seconds of work that waits for it at routers
	start   float64 // wait, with the price of active requests, of the adapter's slot and of the way
	way     float64 // seconds; the price of the way to another zone
	place   float64 // when it would have computed new work: start, or later the end of its excess of active requests, and max(lacks, uncommon)
	water   float64 // poured requests in it, in seconds x weight; see pour
	lacks   float64 // tokens to compute, without what counts as held by every engine
	compute float64 // seconds to compute them
	later   float64 // seconds that this costs other requests
	warmth  float64 // during slow start; see easeIn
	half    bool    // half-open
	outside bool    // outside the hot prefix's replica set; see gather
	exact   bool    // Held is the backend's own account
	full    bool    // closed to this request, which may wait
}

// KVUsage returns the used share of the KV cache, 0 to 1: the engine's report, else an estimate from
// own requests; -1 without both.
func (c *Candidate) KVUsage() float64 { return c.engine.KVUsage(c.kv) }
