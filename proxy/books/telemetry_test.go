package books

import (
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
)

// computes reports that the engine computes so many tokens/s while it prefills, for half of the time.
func computes(b *Fleet, e *Engine, rate float64, from, to prefixtree.Time, since Telemetry) Telemetry {
	for now := from; now <= to; now += 1000 {
		since.At = now
		since.Prefilled += int64(rate / 2)
		since.PrefillTime += time.Second / 2
		b.SetTelemetry(e, since)
	}
	return since
}

// vLLM's sums are of finished requests. An engine that became slow finishes none of the requests that it began while slow for a long
// time, but they are known to have waited.
func TestAnEngineWithWaitingRequestsShowsItsRateAtOnce(t *testing.T) {
	const tokens = 1_000 // of each prompt
	for _, c := range []struct {
		name           string
		waiting, begun int64
		left           int // that wait at the end
		ended          int64
		kv             float64
		want           float64
	}{
		{"computed all the time", 11, 10, 1, 5, .5, 10 * tokens / 5},
		{"may have rested after the last", 10, 10, 1, 0, .5, 40_000},
		{"clients left", 11, 10, 0, 0, .5, 40_000},
		{"computes its first prompt", 10, 0, 10, 0, .5, 40_000},
		{"nothing waited", 0, 1, 1, 0, .5, 40_000},
		{"lacks places", 11, 10, 1, 10, .5, 40_000},
		{"lacks memory", 11, 10, 1, 0, .95, 40_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, e := one()
			last := computes(b, e, 40_000, t0, t0+60_000, Telemetry{PrefillTime: time.Hour, Prefilled: 1 << 40, FirstTokens: 1 << 20, FirstComputed: 1 << 40})
			last.At, last.Waiting = last.At+5_000, int(c.waiting)
			b.SetTelemetry(e, last)
			last.At, last.FirstTokens, last.FirstComputed = last.At+5_000, last.FirstTokens+c.begun, last.FirstComputed+c.begun*tokens
			last.Waiting, last.KVUsage = c.left, c.kv
			last.Prefilled, last.PrefillTime, last.Prefills = last.Prefilled+c.ended*4_000, last.PrefillTime+time.Duration(c.ended)*time.Second/10, last.Prefills+c.ended
			b.SetTelemetry(e, last)
			if got := e.RateOr(b.FleetRate()); math.Abs(got-c.want) > c.want/50 {
				t.Errorf("%v tokens/s, want %v", got, c.want)
			}
			if c.want < 40_000 { // what finished meanwhile was computed before
				last.Waiting = 11
				b.SetTelemetry(e, last)
				last.At, last.Prefilled, last.PrefillTime, last.Prefills = last.At+5_000, last.Prefilled+8_000, last.PrefillTime+time.Second/5, last.Prefills+5
				last.FirstTokens, last.FirstComputed = last.FirstTokens+10, last.FirstComputed+10*tokens
				b.SetTelemetry(e, last)
				if got, want := e.RateOr(b.FleetRate()), 10*tokens/5.0; math.Abs(got-want) > want/50 {
					t.Errorf("five seconds later %v tokens/s, want %v", got, want)
				}
			}
		})
	}
}
