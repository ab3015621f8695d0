package engine

import (
	"math"
	"strings"
	"testing"
	"time"
)

// From a vLLM server with two data-parallel engines.
const vllmPage = `# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 9871.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.78e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.3-70B-Instruct"} 3.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.3-70B-Instruct"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 100.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.5e+06
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 500000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.0e+06
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 0.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 77.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",calculate_kv_scales="False",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="93750",num_gpu_blocks_override="None",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="6250"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="1.0",model_name="m"} 0.0
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="m"} 30000.0
vllm:request_prefill_kv_computed_tokens_sum{engine="1",model_name="m"} 10000.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 30.0
vllm:request_prefill_time_seconds_count{engine="1",model_name="m"} 10.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 3.0
vllm:request_prefill_time_seconds_sum{engine="1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 32.0
vllm:time_to_first_token_seconds_count{engine="1",model_name="m"} 11.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 32000.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 11000.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_cache_hit"} 9.0
`

const sglangPage = `# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="qwen"} 8.128902e+06
sglang:cached_tokens_total{cache_source="total",model_name="qwen"} 4000
sglang:token_usage{model_name="qwen"} 0.28
sglang:cache_hit_rate{model_name="qwen"} 0.007507552643049313
sglang:num_running_reqs{model_name="qwen"} 161.0
sglang:num_used_tokens{model_name="qwen"} 123859.0
sglang:gen_throughput{model_name="qwen"} 86.50814177726902
sglang:num_queue_reqs{model_name="qwen"} 2.0
sglang:max_total_num_tokens{model_name="qwen"} 442000
`

func TestParseMetrics(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       Metrics
	}{
		{"vllm", vllmPage, Metrics{7, 1, 0.5, 1_600_000, 2_000_000, 1_000_000, 1.78e9, -1, 40_000, 2 * time.Second, 40, -1, -1, 0, noFetches}},
		{"vllm, older names", "vllm:num_requests_running 2\nvllm:num_requests_waiting{x=\"a } b\\\"\"} 3\nvllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_queries 10\nvllm:gpu_prefix_cache_hits_total 4\n", Metrics{2, 3, 0.5, -1, 10, 4, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"sglang", sglangPage, Metrics{161, 2, 0.28, 442000, 8128902, 4000, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"sglang, geometry", "sglang:cache_config_info{page_size=\"64\",num_pages=\"100\"} 1\nsglang:max_total_num_tokens 1\n", Metrics{-1, -1, -1, 6400, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"idle is not unknown", "vllm:num_requests_running{engine=\"0\"} 0.0\n", Metrics{0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"front ends", "process_start_time_seconds 1.5e9\nprocess_start_time_seconds{pid=\"2\"} 1.75e9\nprocess_start_time_seconds 1.6e9\n", Metrics{-1, -1, -1, -1, -1, -1, 1.75e9, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"timestamps, exemplars, spaces", "vllm:num_requests_running{a=\"b\"}  5  1700000000000\r\nvllm:num_requests_waiting\t6 # {trace_id=\"x\"} 1\n", Metrics{5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"no amounts", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\nsglang:num_queue_reqs\nsglang:token_usage{\n", Metrics{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
		{"vllm, lower tiers", "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"device\"} 9\nvllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"host\"} 300\n" +
			"vllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"disk\"} 20\nvllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"p2p\"} 7\n" +
			"vllm:kv_offload_load_time_total{engine=\"0\"} 1.5\nvllm:kv_offload_tiering_read_time_total{engine=\"0\"} 0.25\n",
			Metrics{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, Fetches{320, 1500 * time.Millisecond, 20, 250 * time.Millisecond}}},
		{"sglang, lower tiers", "sglang:load_back_tokens_total{tp_rank=\"0\"} 640\nsglang:load_back_duration_seconds_sum{tp_rank=\"0\"} 0.5\n",
			Metrics{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, Fetches{640, 500 * time.Millisecond, -1, -1}}},
		{"nothing", "", Metrics{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseMetrics(strings.NewReader(c.page))
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.KVUsage-c.want.KVUsage) < 1e-9 {
				got.KVUsage = c.want.KVUsage
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	if _, err := ParseMetrics(strings.NewReader(strings.Repeat("x", maxLine+1))); err == nil {
		t.Error("a line beyond all bounds was taken")
	}
}

func TestParseRank(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       []Metrics
	}{
		{"vllm", vllmPage, []Metrics{{3, 1, 0.25, 1_500_000, 1_500_000, 1_000_000, 1.78e9, -1, 30_000, 3 * time.Second, 30, 32, 32_000, 0, noFetches}, {4, 0, 0.75, 100_000, 500_000, 0, 1.78e9, -1, 10_000, time.Second, 10, 11, 11_000, 0, noFetches}}},
		{"a node of several", strings.ReplaceAll(strings.ReplaceAll(vllmPage, `engine="1"`, `engine="10"`), `engine="0"`, `engine="9"`),
			[]Metrics{{3, 1, 0.25, 1_500_000, 1_500_000, 1_000_000, 1.78e9, -1, 30_000, 3 * time.Second, 30, 32, 32_000, 0, noFetches}, {4, 0, 0.75, 100_000, 500_000, 0, 1.78e9, -1, 10_000, time.Second, 10, 11, 11_000, 0, noFetches}}},
		{"sglang", "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 1\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"4\"} 2\n",
			[]Metrics{{1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}, {2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}}},
		{"one rank", sglangPage, nil},
		{"others' labels", "http_requests_total{engine=\"1\"} 2\n", nil},
	} {
		if got := Ranks([]byte(c.page)); len(got) != len(c.want) {
			t.Errorf("%s: ranks %q, want %d", c.name, got, len(c.want))
		}
		for rank, want := range c.want {
			if got, err := ParseRank([]byte(c.page), rank); err != nil || got != want {
				t.Errorf("%s: rank %d: %+v, %v; want %+v", c.name, rank, got, err, want)
			}
		}
		if m, err := ParseRank([]byte(c.page), len(c.want)); err == nil || !strings.Contains(err.Error(), "data-parallel ranks") {
			t.Errorf("%s: a rank too high: %+v, %v", c.name, m, err)
		}
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add(vllmPage)
	f.Add(sglangPage)
	f.Add(`vllm:cache_config_info{block_size="16",num_gpu_blocks="9\"`)
	f.Fuzz(func(t *testing.T, page string) {
		m, err := ParseMetrics(strings.NewReader(page))
		if err != nil {
			return
		}
		for _, v := range []float64{float64(m.Running), float64(m.Waiting), m.KVUsage, float64(m.KVTokens), float64(m.QueriedTokens), float64(m.HitTokens)} {
			if math.IsNaN(v) || v < -1 {
				t.Fatalf("%q: %+v", page, m)
			}
		}
	})
}
