package family

import (
	"testing"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/fleetsim"
)

// An engine becomes five times slower, no answer is streamed, and what nodes report of each other is a
// second late. What the engine reports of itself shows it.
func TestTelemetryShowsThatAnEngineSlowsDown(t *testing.T) {
	bubble.SkipInRace(t)
	d := NewDraw(1, 47, 0)
	if d.Fleet != "degrading" || d.Streamed != 0 || d.StalenessMS != 1000 || d.Nodes != 32 {
		t.Fatalf("draw 47 is now another: %s", &d)
	}
	p99 := func(reported fleetsim.Telemetry) float64 {
		d.Telemetry = reported
		r, err := play(t.Context(), d, []string{Judged})
		if err != nil {
			t.Fatal(err)
		}
		return r.judged().TTFT.P99
	}
	if without, with := p99(fleetsim.NoTelemetry), p99(fleetsim.SGLang); with > without/4 {
		t.Errorf("p99 of the first token is %.0f ms without telemetry and %.0f ms with that of SGLang", without, with)
	}
}
