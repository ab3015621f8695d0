package engine

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

type histogram struct {
	counts []int64 // per bucket, not cumulative; the last one is above all bounds
	sum    float64
}

var histogramBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

func newHistogram() histogram { return histogram{counts: make([]int64, len(histogramBounds)+1)} }

func (h *histogram) observe(d time.Duration) {
	v, i := d.Seconds(), 0
	for i < len(histogramBounds) && v > histogramBounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

func (h *histogram) clone() histogram {
	return histogram{counts: append([]int64(nil), h.counts...), sum: h.sum}
}

type exposition struct {
	bytes.Buffer
	prefix string
	labels string
}

func (x *exposition) metric(kind, name, help string, value float64) {
	x.family(kind, name, help)
	x.sample(name, "", value)
}

func (x *exposition) family(kind, name, help string) {
	fmt.Fprintf(x, "# HELP %s%s %s\n# TYPE %s%s %s\n", x.prefix, name, help, x.prefix, name, kind)
}

func (x *exposition) sample(name, more string, value float64) {
	fmt.Fprintf(x, "%s%s{%s%s} %s\n", x.prefix, name, x.labels, more, strconv.FormatFloat(value, 'g', -1, 64))
}

func (x *exposition) histogram(name, help string, h histogram) {
	x.family("histogram", name, help)
	total := int64(0)
	for i, n := range h.counts {
		total += n
		bound := "+Inf"
		if i < len(histogramBounds) {
			bound = strconv.FormatFloat(histogramBounds[i], 'g', -1, 64)
		}
		x.sample(name+"_bucket", `,le="`+bound+`"`, float64(total))
	}
	x.sample(name+"_sum", "", h.sum)
	x.sample(name+"_count", "", float64(total))
}

func labelValue(v string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(v)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var m Stats
	var ttft, latency histogram
	err := s.driver.do(func(time.Duration) {
		m, ttft, latency = s.driver.model.Stats(), s.driver.ttft.clone(), s.driver.latency.clone()
	})
	if err != nil {
		s.writeError(w, endpointNone, launchError(err))
		return
	}
	model := labelValue(s.cfg.Models[0])
	x := &exposition{}
	if s.cfg.MetricsStyle == StyleSGLang {
		x.prefix, x.labels = "sglang:", `model_name="`+model+`"`
		x.sglang(m, s.cfg)
	} else {
		x.prefix, x.labels = "vllm:", `engine="0",model_name="`+model+`"`
		x.vllm(m, s.cfg)
	}
	fmt.Fprintf(x, "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"+
		"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %s\n", strconv.FormatFloat(float64(s.began.UnixMilli())/1000, 'f', -1, 64))
	x.histogram("time_to_first_token_seconds", "Time from arrival to the first token.", ttft)
	x.histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", latency)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(x.Len()))
	_, _ = w.Write(x.Bytes()) // the scraper may have left
}

// usage is the share of KV memory that running jobs hold. Evictable blocks count as free, as in the
// engines.
func (m *Stats) usage() float64 { return float64(m.KVUsed-m.KVEvictable) / float64(m.KVTokens) }

func (x *exposition) vllm(m Stats, cfg ServerConfig) {
	x.metric("gauge", "num_requests_running", "Requests in model execution batches.", float64(m.Running))
	x.metric("gauge", "num_requests_waiting", "Requests waiting to be processed.", float64(m.Waiting))
	x.family("gauge", "num_requests_waiting_by_reason", "Requests waiting, by reason.")
	x.sample("num_requests_waiting_by_reason", `,reason="capacity"`, float64(m.Waiting))
	x.sample("num_requests_waiting_by_reason", `,reason="deferred"`, 0)
	x.metric("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", m.usage())
	x.metric("counter", "prefix_cache_queries_total", "Prefix cache queries, in queried tokens.", float64(m.PromptTokens))
	x.metric("counter", "prefix_cache_hits_total", "Prefix cache hits, in cached tokens.", float64(m.CachedTokens))
	x.metric("counter", "num_preemptions_total", "Preemptions.", float64(m.Preempted))
	x.metric("counter", "prompt_tokens_total", "Prefill tokens processed.", float64(m.PromptTokens))
	x.metric("counter", "generation_tokens_total", "Generation tokens processed.", float64(m.OutputTokens))
	x.family("counter", "request_success_total", "Requests by the reason they ended for.")
	x.sample("request_success_total", `,finished_reason="length"`, float64(m.Finished))
	x.sample("request_success_total", `,finished_reason="abort"`, float64(m.Cancelled))
	x.family("gauge", "cache_config_info", "Information of the LLMEngine CacheConfig.")
	x.sample("cache_config_info", fmt.Sprintf(`,block_size="%d",num_gpu_blocks="%d",enable_prefix_caching="True"`, cfg.BlockTokens, cfg.KVTokens/cfg.BlockTokens), 1)
}

func (x *exposition) sglang(m Stats, cfg ServerConfig) {
	rate := 0.0
	if m.PromptTokens > 0 {
		rate = float64(m.CachedTokens) / float64(m.PromptTokens)
	}
	x.metric("gauge", "num_running_reqs", "The number of running requests.", float64(m.Running))
	x.metric("gauge", "num_queue_reqs", "The number of requests in the waiting queue.", float64(m.Waiting))
	x.metric("gauge", "num_used_tokens", "The number of used tokens.", float64(m.KVUsed-m.KVEvictable))
	x.metric("gauge", "token_usage", "The token usage.", m.usage())
	x.metric("gauge", "cache_hit_rate", "The prefix cache hit rate.", rate)
	x.family("counter", "cached_tokens_total", "Number of cached prompt tokens.")
	x.sample("cached_tokens_total", `,cache_source="device"`, float64(m.CachedTokens))
	x.metric("counter", "prompt_tokens_total", "Number of prefill tokens processed.", float64(m.PromptTokens))
	x.metric("counter", "generation_tokens_total", "Number of generation tokens processed.", float64(m.OutputTokens))
	x.metric("counter", "num_requests_total", "Number of requests processed.", float64(m.Finished))
	x.metric("counter", "num_aborted_requests_total", "Number of requests aborted.", float64(m.Cancelled))
	x.family("gauge", "cache_config_info", "Geometry of the KV cache.")
	x.sample("cache_config_info", fmt.Sprintf(`,page_size="%d",num_pages="%d"`, cfg.BlockTokens, cfg.KVTokens/cfg.BlockTokens), 1)
}
