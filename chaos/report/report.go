// Package report is the one shape in which everything that tries a fleet tells
// what it saw: live runs, simulations and the demo. It has a recorder for
// requests as they end, the report itself (JSON), a table for people, and plots.
//
// It judges nothing and compares nothing; it starts no goroutine and reads no
// clock.
package report

import (
	"encoding/json"
	"io"
)

// Report is the outcome of one run. The JSON field names are a published format
// (docs/design.md, section 9); fields may be added, never changed. Unless said
// otherwise all figures leave out the warm-up, and shares lie in [0, 1].
type Report struct {
	// Requests counts what ended, well or badly; Errors what ended badly.
	// Latencies and tokens are those of the others.
	Requests     int     `json:"requests"`
	Errors       int     `json:"errors"`
	DurationS    float64 `json:"duration_s"` // from the first arrival (or the end of warm-up) to the last end
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	// HitRate is cached / prompt tokens as the engines count them.
	HitRate float64 `json:"hit_rate"`
	// FollowupCached is the hit rate of second and later turns;
	// FollowupSameBackend the share of them that went where the turn before went.
	FollowupCached      float64 `json:"followup_cached"`
	FollowupSameBackend float64 `json:"followup_same_backend"`
	// LoadCov is the population standard deviation of requests per backend over
	// their mean, backends without a request included.
	LoadCov        float64           `json:"load_cov"`
	Rungs          map[string]int    `json:"rungs"`
	TTFT           Quantiles         `json:"ttft_ms"`
	E2E            Quantiles         `json:"e2e_ms"`
	RouterOverhead Quantiles         `json:"router_overhead_us"`
	Prediction     PredictionSummary `json:"prediction_error_tokens"`
	Gossip         Gossip            `json:"gossip"`
	Backends       []Backend         `json:"backends"`
	Seed           uint64            `json:"seed"`
	Policy         string            `json:"policy"`
	Nodes          int               `json:"nodes"`

	// Below: beyond the published shape.

	*Sharing // nil: not a simulation

	Label string `json:"label,omitempty"`
	// Queue is the time from arrival until an engine begins with the prompt, the
	// part of TTFT that is waiting; zero where nobody measures it.
	Queue        Quantiles `json:"queue_ms"`
	Workload     string    `json:"workload,omitempty"`
	OutputTokens int64     `json:"output_tokens"`
	// Utilization is the mean share of time in which a backend had prompt tokens
	// to compute, while requests arrived; 0 where nobody measures it.
	Utilization float64 `json:"utilization"`
	// Hot is nil where hot prefixes are not replicated on purpose.
	Hot *Hot `json:"hot,omitempty"`
	// Cut counts requests that broke because the run broke the node that served
	// them: in Requests, not in Errors.
	Cut int `json:"cut,omitempty"`
	// Speed is the factor the workload was accelerated by.
	Speed          float64 `json:"speed,omitempty"`
	WarmupS        float64 `json:"warmup_s"`
	WarmupRequests int     `json:"warmup_requests"`
	// FollowupRequests is the number behind the follow-up shares.
	FollowupRequests int `json:"followup_requests"`

	// Series is the course of the run, for plots.
	Series []Bucket `json:"-"`
}

// Quantiles summarises a distribution; exact, by nearest rank. The unit is in the
// name of the field that holds it. All zero if nothing was measured.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// PredictionSummary tells how far the router's idea of what a backend had cached
// was from what the engine then reported, in tokens, either way.
type PredictionSummary struct {
	Mean float64 `json:"mean"`
	P95  float64 `json:"p95"`
	// Share is the sum of errors over the sum of prompt tokens, Bias the same with
	// sign: above 0 the router believed in more than there was.
	Share    float64 `json:"share"`
	Bias     float64 `json:"bias"`
	Requests int     `json:"requests"` // that had both
}

// Gossip is what sharing cost and how fast it was; zero without any.
type Gossip struct {
	BytesPerSPerNode float64     `json:"bytes_per_s_per_node"`
	Convergence      Convergence `json:"convergence_ms"`
}

// Convergence is the age at which a fact had reached every node.
type Convergence struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Hot is what was agreed on about hot prefixes.
type Hot struct {
	Changes []HotChange `json:"changes"`
}

// HotChange is one decision; 0 replicas give the prefix up.
type HotChange struct {
	AtS      float64 `json:"at_s"`
	Anchor   string  `json:"anchor"`
	Tokens   int     `json:"tokens"`
	Replicas int     `json:"replicas"`
	Why      string  `json:"why"`
}

// Sharing is what the nodes of a simulation told each other.
type Sharing struct {
	Share string `json:"share"` // both, prefix, load, none
	// StalenessMS is the time from an event at one node until all others know of
	// it; null: they never do.
	StalenessMS *float64 `json:"staleness_ms"`
	// Loss is the share of the news of placements that never arrived; PartitionS from
	// when to when the fleet was cut in two.
	Loss       float64   `json:"loss"`
	PartitionS []float64 `json:"partition_s,omitempty"`
}

// Backend is one engine's part of a run.
type Backend struct {
	ID           int     `json:"id"`
	Requests     int     `json:"requests"`
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	Utilization  float64 `json:"utilization,omitempty"`
}

// Bucket is one of equal slices of a run's time, by arrival.
type Bucket struct {
	From, To float64 // s since the start
	Requests int
	HitRate  float64
	TTFT     Quantiles // ms
}

// WriteJSON writes one report as it is, or several as {"runs":[...]}: one JSON
// object either way, and a line feed.
func WriteJSON(w io.Writer, runs ...Report) error {
	enc := json.NewEncoder(w)
	if len(runs) == 1 {
		return enc.Encode(runs[0])
	}
	return enc.Encode(struct {
		Runs []Report `json:"runs"`
	}{runs})
}
