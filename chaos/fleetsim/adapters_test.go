package fleetsim

import (
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

// With eight slots and 64 adapters, requests wait for each other's adapters unless the routers keep each on few engines.
func TestAdaptersWaitForSlots(t *testing.T) {
	bubble.SkipInRace(t)
	p99 := func(slots int, reported Telemetry) float64 {
		cfg := chat(t, "prefix")
		cfg.Engine = EngineFor(cfg.Workload)
		cfg.Engine.AdapterSlots, cfg.Engine.AdapterLoad = slots, 10*time.Millisecond
		cfg.Adapters, cfg.Telemetry, cfg.Nodes, cfg.Backends = 64, reported, []int{4}, 16
		cfg.Options.Duration, cfg.Options.Backends, cfg.Options.Speed, cfg.Warmup = 20*time.Second, 16, 1.8, 8*time.Second
		return run(t, cfg)[0].TTFT.P99
	}
	ample, told, untold := p99(0, NoTelemetry), p99(8, SGLang), p99(8, NoTelemetry)
	t.Logf("p99 of the first token's time: %.0f ms with any number of slots; with 8, %.0f ms, and %.0f ms without reports", ample, told, untold)
	if told > 2*ample || untold < 5*ample {
		t.Errorf("p99 of the first token's time: %.0f ms with any number of slots; with 8, %.0f ms, and %.0f ms without reports", ample, told, untold)
	}
}
