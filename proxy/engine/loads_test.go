package engine

import (
	"strings"
	"testing"
	"time"
)

// From SGLang 0.5.23 with two data-parallel ranks, the second of which is idle.
const loadsAnswer = `{"timestamp":"2026-11-23T10:00:00.250000+00:00","version":"0.5.23","accelerator":"x","num_accelerators":1,"loads":[
{"timestamp":1795428000.0,"dp_rank":0,"num_running_reqs":5,"num_waiting_reqs":3,"num_waiting_uncached_tokens":12345,"num_used_tokens":2000,
"num_total_tokens":2500,"max_total_num_tokens":10000,"max_running_requests":32,"token_usage":0.5,"gen_throughput":0.0,"decode_moments":[120,0],
"total_prefill_uncached_tokens":40000,"total_prefill_busy_us":3000000},
{"timestamp":1795420000.0,"dp_rank":1,"num_running_reqs":0,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"max_total_num_tokens":10000,
"token_usage":0.0,"decode_moments":null,"total_prefill_uncached_tokens":20000,"total_prefill_busy_us":1000000}]}`

func TestParseLoads(t *testing.T) {
	both := Metrics{5, 3, 0.25, 20_000, -1, -1, -1, 12_345, 60_000, 2 * time.Second, -1, -1, -1, 250 * time.Millisecond, noFetches}
	with := func(change func(*Metrics)) Metrics {
		m := both
		change(&m)
		return m
	}
	mute := unknownMetrics
	mute.Running = 1
	for _, c := range []struct {
		name, text string
		want       Metrics
	}{
		{"two ranks", loadsAnswer, both},
		{"an old release", strings.NewReplacer("num_waiting_uncached", "x", "total_prefill", "y").Replace(loadsAnswer),
			with(func(m *Metrics) { m.Queued, m.Computed, m.ComputeTime = -1, -1, -1 })},
		{"one rank lacks a count", strings.Replace(loadsAnswer, `"total_prefill_busy_us":1000000`, `"total_prefill_busy_us":null`, 1),
			with(func(m *Metrics) { m.Computed, m.ComputeTime = -1, -1 })},
		{"nonsense", `{"loads":[{"num_running_reqs":1,"num_waiting_reqs":-5,"num_waiting_uncached_tokens":"many","token_usage":-2,"total_prefill_busy_us":1.5}]}`, mute},
		{"no times", strings.ReplaceAll(loadsAnswer, `"timestamp":"2026`, `"timestamp":"around 2026`), with(func(m *Metrics) { m.Age = 0 })},
	} {
		if got, err := ParseLoads([]byte(c.text), -1); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	first := Metrics{5, 3, 0.5, 10_000, -1, -1, -1, 12_345, 40_000, 3 * time.Second, -1, -1, -1, 250 * time.Millisecond, noFetches}
	if got, err := ParseLoads([]byte(loadsAnswer), 0); err != nil || got != first {
		t.Errorf("the first rank: %+v, %v, want %+v", got, err, first)
	}
	if got, err := ParseLoads([]byte(loadsAnswer), 2); err == nil {
		t.Errorf("the third of two ranks: %+v", got)
	}
	for _, text := range []string{"", "[]", "{}", `{"loads":[]}`, `{"loads":3}`} {
		if got, err := ParseLoads([]byte(text), -1); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
	}
}

func FuzzParseLoads(f *testing.F) {
	f.Add([]byte(loadsAnswer))
	f.Add([]byte(`{"loads":[{"timestamp":1e300,"num_running_reqs":9223372036854775807},{"num_running_reqs":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseLoads(text, -1)
		if err == nil && (min(int64(m.Running), int64(m.Waiting), m.Queued, m.Computed, int64(m.ComputeTime), m.KVTokens) < -1 ||
			m.Age < 0 || m.Age > maxAge || !(m.KVUsage >= -1)) {
			t.Fatalf("%q: %+v", text, m)
		}
	})
}

func TestPollInterval(t *testing.T) {
	for _, c := range []struct {
		engines, nodes int
		want           time.Duration
	}{{8, 1, time.Second}, {200, 3, time.Second}, {400, 3, 2 * time.Second}, {8, 32, time.Second}, {8, 100, 2 * time.Second}, {2000, 100, 10 * time.Second}} {
		if got := PollInterval(time.Second, c.engines, c.nodes); got != c.want {
			t.Errorf("%d engines and %d nodes: every %v, want %v", c.engines, c.nodes, got, c.want)
		}
	}
}
