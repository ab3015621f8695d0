// Package history keeps hours of what a fleet did in a small ring: requests, first-token times, hit
// rates, prefill saved. Each node counts its own requests and hears the counts of its peers by
// gossip, so that every node has the figures of the whole fleet. It has no clock.
package history

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"grapevine.example/gossip/wire"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
)

// Keys of figures. Nodes of other releases read them: a number is never given a new meaning. All are
// counters since the start of the process, but inFlight.
const (
	served       = 1 + iota // answered with a status below 400
	rejected                // the client's fault: 4xx but 429 and 499
	refused                 // 429: limits, or all engines busy
	failed                  // 5xx, and answers that broke off
	departed                // 499: the client left before the answer
	promptTokens            // of answers that report cached tokens
	cachedTokens            // of these
	savedMicros             // prefill that the cached tokens saved, in microseconds of the engine
	inFlight
	randomBlocks      // of prompts: the sample of Baseline, in 1/hitUnit
	randomHits        // of these, that an engine drawn at random would hold
	firstBucket  = 16 // of first-token times
	figures      = firstBucket + buckets
)

const (
	hitUnit     = 1000
	buckets     = 32
	leastTTFT   = 0.002 // seconds: the upper end of the first bucket
	bucketWidth = 1.5   // quotient of a bucket's ends; the last begins at 570 s
)

var logWidth = math.Log(bucketWidth)

func bucketOf(ttft time.Duration) int {
	if ttft.Seconds() <= leastTTFT {
		return 0
	}
	return min(1+int(math.Log(ttft.Seconds()/leastTTFT)/logWidth), buckets-1)
}

// quantile returns seconds, interpolated within a bucket; NaN without requests.
func quantile(counts []float64, q float64) float64 {
	total := 0.0
	for _, c := range counts {
		total += c
	}
	rank := q * total
	for i, c := range counts {
		if c > 0 && rank <= c {
			return leastTTFT * math.Pow(bucketWidth, float64(i)-1+rank/c)
		}
		rank -= c
	}
	return math.NaN()
}

// OtherKey begins the keys of figures that are in no ring, which History keeps for other packages.
const OtherKey = 1 << 30

// lagKey begins the keys of a node's lag to its peers; the rest is the hash of the peer's name.
const lagKey = 1 << 31

// Counts are one node's figures. Safe for concurrent use; it does not block.
type Counts [figures]atomic.Uint64

// Observe counts a finished request; r is valid during the call only. rate is the prefill rate in
// tokens/s of the engine that computed the prompt.
func (c *Counts) Observe(r *proxy.Record, rate float64) {
	c[outcome(r)].Add(1)
	if r.TTFT > 0 {
		c[firstBucket+bucketOf(r.TTFT)].Add(1)
	}
	d := Deciding(r)
	if d == nil || r.CachedTokens < 0 || r.PromptTokens <= 0 {
		return
	}
	c[promptTokens].Add(uint64(r.PromptTokens))
	c[cachedTokens].Add(uint64(r.CachedTokens))
	if rate > 0 {
		c[savedMicros].Add(uint64(1e6 * float64(r.CachedTokens) / rate))
	}
}

// Deciding returns the decision of the backend that computed the prompt, or nil.
func Deciding(r *proxy.Record) *policy.Decision {
	if r.Prefill.Backend != "" && r.Prefill.Failed == books.None {
		return r.Prefill.Decision
	}
	return r.Decision
}

func outcome(r *proxy.Record) int {
	switch {
	case r.Broken || r.Status >= 500:
		return failed
	case r.Status == 429:
		return refused
	case r.Status == proxy.StatusClientGone:
		return departed
	case r.Status >= 400:
		return rejected
	}
	return served
}

// Append appends the figures for the peers, with the requests in flight and the lags to peers in
// milliseconds, by the hash of the peer's name.
func (c *Counts) Append(dst []wire.Figure, requests int, lags map[uint32]float64) []wire.Figure {
	c[inFlight].Store(uint64(max(requests, 0)))
	for key := range c {
		if v := c[key].Load(); v > 0 {
			dst = append(dst, wire.Figure{Key: uint32(key), Low: uint32(v), High: uint32(v >> 32)})
		}
	}
	for peer, ms := range lags {
		dst = append(dst, wire.Figure{Key: lagKey | peer, Low: coarse(ms)})
	}
	slices.SortFunc(dst, func(a, b wire.Figure) int { return int(int64(a.Key) - int64(b.Key)) })
	return dst
}

// coarse rounds milliseconds, at least 1, to steps of a quarter, so that a lag is not sent again for
// each jitter.
func coarse(ms float64) uint32 {
	if ms <= 1 {
		return 1
	}
	return uint32(math.Round(math.Exp2(math.Round(math.Log2(ms)*3) / 3)))
}
