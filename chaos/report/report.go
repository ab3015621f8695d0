// Package report records the requests of live runs, simulations and the demo, and writes them as
// JSON, a table, and plots.
package report

import (
	"encoding/json"
	"io"
)

// Report is one run. Its JSON names are a published format (docs/design.md, section 9): fields may
// be added, never changed. Unless noted, figures exclude the warm-up; shares lie in [0, 1].
type Report struct {
	// Errors have no latencies and tokens.
	Requests     int     `json:"requests"`
	Errors       int     `json:"errors"`
	DurationS    float64 `json:"duration_s"` // from the first arrival (or the end of warm-up) to the last end
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	// HitRate is cached / prompt tokens as counted by the engines.
	HitRate float64 `json:"hit_rate"`
	// FollowupCached is the hit rate of later turns, FollowupSameBackend the share of them at the
	// previous turn's engine.
	FollowupCached      float64 `json:"followup_cached"`
	FollowupSameBackend float64 `json:"followup_same_backend"`
	// LoadCov is the standard deviation of requests per backend (idle too) over their mean.
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

	// Fields beyond the published format follow.

	*Sharing // nil: not a simulation

	// Queue is the part of TTFT until an engine begins with the prompt; zero if not measured.
	Queue        Quantiles `json:"queue_ms"`
	Workload     string    `json:"workload,omitempty"`
	OutputTokens int64     `json:"output_tokens"`
	// Utilization is the backends' mean share of time with prompt tokens to compute; 0: not
	// measured.
	Utilization float64 `json:"utilization"`
	Hot         *Hot    `json:"hot,omitempty"`
	// Cut counts requests that broke with their node: in Requests, not in Errors.
	Cut int `json:"cut,omitempty"`
	// Queueing is where requests wait: in engines (off) or at routers (on); alone: NAME are one client's.
	Queueing string `json:"queueing,omitempty"`
	// Refused counts requests for which a queue had no place or no time: in Requests, not in Errors.
	Refused int `json:"refused,omitempty"`
	// Goodput is prompt and output tokens/s of requests that ended before arrivals did; 0: not measured.
	Goodput float64  `json:"goodput,omitempty"`
	Clients []Client `json:"clients,omitempty"`
	// Speed is the factor by which the workload was accelerated.
	Speed            float64 `json:"speed,omitempty"`
	WarmupS          float64 `json:"warmup_s"`
	WarmupRequests   int     `json:"warmup_requests"`
	FollowupRequests int     `json:"followup_requests"`

	Series []Bucket `json:"-"`
}

// Quantiles are by nearest rank, in the unit of their field; zero without values.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// PredictionSummary is the difference between expected and counted cached tokens.
type PredictionSummary struct {
	Mean float64 `json:"mean"`
	P95  float64 `json:"p95"`
	// Share is the sum of errors over prompt tokens. Bias above 0: the router expected too much.
	Share    float64 `json:"share"`
	Bias     float64 `json:"bias"`
	Requests int     `json:"requests"` // with both figures
}

type Gossip struct {
	BytesPerSPerNode float64     `json:"bytes_per_s_per_node"`
	Convergence      Convergence `json:"convergence_ms"`
}

// Convergence is the age of a fact when every node has it.
type Convergence struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type Hot struct {
	Changes []HotChange `json:"changes"`
}

// HotChange is a decision; 0 replicas end the prefix's set.
type HotChange struct {
	AtS      float64 `json:"at_s"`
	Anchor   string  `json:"anchor"`
	Tokens   int     `json:"tokens"`
	Replicas int     `json:"replicas"`
	Why      string  `json:"why"`
}

type Sharing struct {
	Share string `json:"share"` // both, prefix, load, none
	// StalenessMS is the time until all nodes know an event; null: never.
	StalenessMS *float64 `json:"staleness_ms"`
	// Loss is the share of lost placement updates, PartitionS a partition's begin and end.
	Loss       float64   `json:"loss"`
	PartitionS []float64 `json:"partition_s,omitempty"`
}

type Backend struct {
	ID           int     `json:"id"`
	Requests     int     `json:"requests"`
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	Utilization  float64 `json:"utilization,omitempty"`
}

// Client is one client's part of a run.
type Client struct {
	Name     string    `json:"name"`
	Requests int       `json:"requests"`
	Refused  int       `json:"refused"`
	HitRate  float64   `json:"hit_rate"`
	TTFT     Quantiles `json:"ttft_ms"`
	Queue    Quantiles `json:"queue_ms"` // until an engine begins with the prompt
	Goodput  float64   `json:"goodput"`  // prompt and output tokens/s
}

// Bucket is a slice of the run by arrival.
type Bucket struct {
	From, To float64 // s since the start
	Requests int
	HitRate  float64
	TTFT     Quantiles // ms
}

// WriteJSON writes one report as it is, several as {"runs":[...]}.
func WriteJSON(w io.Writer, runs ...Report) error {
	enc := json.NewEncoder(w)
	if len(runs) == 1 {
		return enc.Encode(runs[0])
	}
	return enc.Encode(struct {
		Runs []Report `json:"runs"`
	}{runs})
}
