package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// LoadsPath is where SGLang reports its load, whatever its flags. vLLM answers 404.
const LoadsPath = "/v1/loads?include=core"

// count is a number that is not reported if absent, null or negative.
type count struct{ *int64 }

func (c *count) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &c.int64); err != nil || c.int64 != nil && *c.int64 < 0 {
		c.int64 = nil
	}
	return nil
}

func (c count) is(n int64) bool { return c.int64 != nil && *c.int64 == n }

type rankLoad struct {
	Rank      count    `json:"dp_rank"`
	Timestamp float64  `json:"timestamp"` // of the counts, in seconds since 1970 by the same clock
	Running   count    `json:"num_running_reqs"`
	Waiting   count    `json:"num_waiting_reqs"`
	Uncached  count    `json:"num_waiting_uncached_tokens"`
	KVTokens  count    `json:"max_total_num_tokens"`
	KVUsage   *float64 `json:"token_usage"`
	Computed  count    `json:"total_prefill_uncached_tokens"`
	BusyUS    count    `json:"total_prefill_busy_us"`
}

// ParseLoads reads SGLang's answer at LoadsPath: the load of one data-parallel rank, or of all if rank is negative. Before release 0.5.20
// it has no counts of prefill.
func ParseLoads(text []byte, rank int) (Metrics, error) {
	var answer struct {
		Timestamp string     `json:"timestamp"` // of the answer
		Ranks     []rankLoad `json:"loads"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return unknownMetrics, fmt.Errorf("/v1/loads: %w", err)
	}
	if rank >= 0 {
		answer.Ranks = slices.DeleteFunc(answer.Ranks, func(r rankLoad) bool { return !r.Rank.is(int64(rank)) })
	}
	ranks := int64(len(answer.Ranks))
	if ranks == 0 {
		return unknownMetrics, fmt.Errorf("/v1/loads: no loads of the wanted data-parallel ranks")
	}
	var running, waiting, uncached, kv, computed, busy int64
	add := func(sum *int64, c count) {
		switch {
		case c.int64 == nil:
			*sum = -1 << 62
		case *sum >= 0:
			*sum = min(*sum+min(*c.int64, maxCount), maxCount)
		}
	}
	out, usage, known := unknownMetrics, 0.0, true
	answered, errTime := time.Parse(time.RFC3339Nano, answer.Timestamp)
	for i := range answer.Ranks {
		r := &answer.Ranks[i]
		add(&running, r.Running)
		add(&waiting, r.Waiting)
		add(&uncached, r.Uncached)
		add(&kv, r.KVTokens)
		add(&computed, r.Computed)
		add(&busy, r.BusyUS)
		if r.KVUsage == nil || !(*r.KVUsage >= 0) {
			known = false
		} else {
			usage += *r.KVUsage / float64(ranks)
		}
		// An idle rank may stop counting until the next request.
		idle := r.Running.is(0) && r.Waiting.is(0)
		if !idle && r.Timestamp > 0 && errTime == nil {
			at := time.UnixMicro(int64(r.Timestamp * 1e6))
			out.Age = max(out.Age, min(answered.Sub(at), maxAge))
		}
	}
	out.Running, out.Waiting, out.KVTokens = int(max(running, -1)), int(max(waiting, -1)), max(kv, -1)
	out.Queued = max(uncached, -1)
	if known {
		out.KVUsage = usage
	}
	if computed >= 0 && busy >= 0 {
		out.Computed, out.ComputeTime = computed, time.Duration(busy/ranks)*time.Microsecond
	}
	return out, nil
}

// maxCount keeps sums, and times in microseconds, within an int64 of nanoseconds; maxAge is older than
// any report that is worth something.
const (
	maxCount = 1 << 53
	maxAge   = time.Hour
)
