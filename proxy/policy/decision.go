package policy

import (
	"math"
	"time"

	"grapevine.example/prefixtree"
)

const MaxConsidered = 8

// Decision is the result of a Pick, valid until the Attempt is reused.
type Decision struct {
	Backend         prefixtree.Backend `json:"backend"`
	Generation      uint32             `json:"generation"`
	Name            string             `json:"name"`
	Strategy        string             `json:"strategy"`
	Rule            string             `json:"rule"`     // name of the rule that the request follows; "": none, or one without a name
	Pool            string             `json:"pool"`     // labels of the backends that it names; "": all that serve the model
	Fallback        bool               `json:"fallback"` // Pool is the rule's fallback
	Rung            Rung               `json:"rung"`
	PromptTokens    int                `json:"prompt_tokens"`    // estimated
	MatchedBlocks   int                `json:"matched_blocks"`   // leading blocks with a known placement
	PredictedTokens int                `json:"predicted_tokens"` // tokens expected in its cache
	Exact           bool               `json:"exact"`            // PredictedTokens is the engine's own account
	UncachedTokens  int                `json:"uncached_tokens"`  // charge: prompt minus predicted, at least 1
	Age             time.Duration      `json:"age_ns"`           // age of the match; 0: none
	Branch          prefixtree.Hash    `json:"branch"`
	Hot             prefixtree.Hash    `json:"hot"` // anchor of the prompt's hot prefix; 0: none
	Replicas        int                `json:"replicas"`
	Eligible        int                `json:"eligible"`
	Trial           bool               `json:"trial"` // trial request of a half-open backend
	LastResort      bool               `json:"last_resort"`
	FromEngines     bool               `json:"from_engines"` // the engines reported their queues; else nodes report their own work
	LoadAge         time.Duration      `json:"load_age_ns"`  // of these reports; 0 on a single node
	Role            Role               `json:"role"`
	Paired          bool               `json:"paired"`
	// Alone is, for a decode backend, the seconds to compute the prompt itself, with the delay of its
	// running requests; Remote, of PickPrefill, until it has the KV cache from this backend.
	Alone  float64 `json:"alone_s"`
	Remote float64 `json:"remote_s"`
	// Handle is Backend.Handle from the view of this decision.
	Handle any `json:"-"`
	// Candidates are the chosen backend and the cheapest alternatives.
	Candidates []Considered `json:"candidates"`
}

type Considered struct {
	Backend       prefixtree.Backend `json:"backend"`
	Name          string             `json:"name"`
	MatchedBlocks int                `json:"matched_blocks"`
	HeldTokens    float64            `json:"held_tokens"`
	Exact         bool               `json:"exact"` // HeldTokens is the engine's own account
	QueuedTokens  float64            `json:"queued_tokens"`
	Active        int64              `json:"active"`
	Rate          float64            `json:"rate"` // prefill tokens/s
	Age           time.Duration      `json:"age_ns"`
	Cost          float64            `json:"cost"` // in the strategy's unit
	// The parts of Cost in seconds, if prefix chose: until the engine begins, with the price of its
	// active requests; the price of the way to another zone; to compute what its cache lacks; and what
	// that costs others.
	Wait    float64 `json:"wait_s"`
	Zone    float64 `json:"zone_s"`
	Compute float64 `json:"compute_s"`
	Later   float64 `json:"later_s"`
}

func (d *Decision) fill(s *Scene, chosen int, rung Rung, strategy *named, lastResort bool) {
	c := &s.Candidates[chosen]
	b, _ := s.pool.view.Backend(c.Backend)
	*d = Decision{
		Backend: c.Backend, Generation: c.engine.Generation(), Name: b.Name, Handle: b.Handle, Strategy: strategy.name, Rung: rung,
		PromptTokens: s.PromptTokens, MatchedBlocks: int(c.HeldBlocks), PredictedTokens: int(c.Held), Exact: c.exact,
		UncachedTokens: int(math.Ceil(c.Uncached)), Age: time.Duration(c.Age) * time.Millisecond, Branch: s.Branch,
		Hot: s.hot.Anchor, Replicas: s.hot.Replicas, Eligible: s.size, Trial: c.half, LastResort: lastResort, FromEngines: s.FromEngines,
		Role: c.role, Paired: c.paired,
		Candidates: d.Candidates[:0],
	}
	if s.Nodes > 1 {
		d.LoadAge = time.Duration(s.Staleness) * time.Millisecond
	}
	if c.role == Decode {
		d.Alone = c.alone()
	}
	if cap(d.Candidates) < MaxConsidered {
		d.Candidates = make([]Considered, 0, MaxConsidered)
	}
	var low [MaxConsidered - 1]int32
	n := 0
	for i := range s.Candidates {
		cost := s.Candidates[i].Cost
		if i == chosen || math.IsInf(cost, 1) || n == len(low) && cost >= s.Candidates[low[n-1]].Cost {
			continue
		}
		j := min(n, len(low)-1)
		for ; j > 0 && s.Candidates[low[j-1]].Cost > cost; j-- {
			low[j] = low[j-1]
		}
		low[j] = int32(i)
		n = min(n+1, len(low))
	}
	d.Candidates = append(d.Candidates, s.considered(chosen))
	for _, i := range low[:n] {
		d.Candidates = append(d.Candidates, s.considered(int(i)))
	}
}

func (s *Scene) considered(i int) Considered {
	c := &s.Candidates[i]
	cost := c.Cost
	if math.IsInf(cost, 0) || math.IsNaN(cost) {
		cost = math.MaxFloat64 // JSON has no infinity
	}
	return Considered{
		Backend: c.Backend, Name: s.pool.name(c.Backend), MatchedBlocks: int(c.HeldBlocks), HeldTokens: c.Held, Exact: c.exact,
		QueuedTokens: c.Queued, Active: c.Active, Rate: c.Rate, Age: time.Duration(c.Age) * time.Millisecond,
		Cost: cost, Wait: c.start - c.way, Zone: c.way, Compute: c.compute, Later: c.later,
	}
}
