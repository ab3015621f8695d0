package node

import (
	"fmt"
	"math"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
)

// Both engines compute 20,000 tokens per second of prefill. SGLang says so in its loads, vLLM in the
// sums over its finished requests.
func TestEnginesReportTheirLoad(t *testing.T) {
	leakCheck(t)
	sglang, vllm := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	told := 0 // under the engine's lock
	sglang.setLoads(func() string {
		told++
		return fmt.Sprintf(`{"loads":[{"num_running_reqs":4,"num_waiting_reqs":2,"num_waiting_uncached_tokens":9000,"token_usage":0.5,
			"max_total_num_tokens":70000,"total_prefill_uncached_tokens":%d,"total_prefill_busy_us":%d}]}`, 40_000*told, 2_000_000*told)
	})
	sglang.setMetrics("sglang:num_running_reqs 1\nsglang:max_total_num_tokens 80000\n")
	page := func(k int) string {
		return fmt.Sprintf("vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:request_prefill_kv_computed_tokens_sum %d\n"+
			"vllm:request_prefill_time_seconds_sum %d\nvllm:request_prefill_time_seconds_count %d\n", 40_000*k, 2*k, 4*k)
	}
	vllm.setMetrics(page(1))
	cfg := testConfig()
	cfg.MetricsInterval, cfg.LoadsInterval = 10*time.Millisecond, 10*time.Millisecond
	cfg.Backends = []config.Backend{{URL: sglang.URL, Name: "sglang"}, {URL: vllm.alias(), Name: "vllm"}}
	n := startNode(t, cfg)
	for k := 2; k <= 12; k++ {
		scraped := vllm.scraped.Load()
		eventually(t, "two more pages", func() bool { return vllm.scraped.Load() >= scraped+2 })
		vllm.setMetrics(page(k))
	}
	list := func() []admin.BackendStatus { return n.BackendList().Backends }
	eventually(t, "the rates are learned", func() bool {
		l := list()
		return math.Abs(l[0].Rate-20_000) < 200 && math.Abs(l[1].Rate-20_000) < 200
	})
	l := list()
	if a, b := l[0].RateFrom, l[1].RateFrom; a != "engine" || b != "engine" {
		t.Errorf("rates are from %s and %s", a, b)
	}
	if e := l[0].Engine; e == nil || e.From != backends.FromLoads || e.Running != 4 || e.Waiting != 2 || e.QueuedTokens != 9000 || e.KVUsage != 0.5 {
		t.Errorf("SGLang: %+v", e)
	}
	if e := l[1].Engine; e == nil || e.From != backends.FromMetrics || e.Running != 3 || e.Waiting != 1 || e.QueuedTokens != -1 {
		t.Errorf("vLLM: %+v", e)
	}
	if asked := vllm.loaded.Load(); asked != 1 {
		t.Errorf("vLLM, which has no loads, was asked for them %d times", asked)
	}
	series := scrape(t, n)
	for _, want := range []string{`grapevine_backend_report_age_seconds{backend="sglang",from="/v1/loads"}`, `grapevine_backend_report_age_seconds{backend="vllm",from="/metrics"}`} {
		if age, ok := series[want]; !ok || age < 0 {
			t.Errorf("%s is %v (%v)", want, age, ok)
		}
	}
}

func TestLoadsAreReadOnlyIfAsked(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	e.setMetrics("vllm:num_requests_running 1\n")
	cfg := testConfig(e.URL)
	cfg.MetricsInterval, cfg.LoadsInterval = 10*time.Millisecond, 0
	startNode(t, cfg)
	eventually(t, "three rounds", func() bool { return e.scraped.Load() >= 3 })
	if e.loaded.Load() != 0 {
		t.Error("an engine was asked for its loads")
	}
}
