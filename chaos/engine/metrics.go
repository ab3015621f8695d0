package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var histogramBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

// collector reads the counts of a rank's model at every scrape, under the names of the imitated engine.
type collector struct {
	*driver
	cfg    *ServerConfig
	prefix string
	labels prometheus.Labels
	out    chan<- prometheus.Metric
}

func (s *Server) routeMetrics() {
	registry := prometheus.NewRegistry()
	for rank, d := range s.ranks {
		c := collector{driver: d, cfg: &s.cfg, prefix: "vllm:", labels: prometheus.Labels{"engine": strconv.Itoa(rank), "model_name": s.cfg.Models[0]}}
		if s.cfg.MetricsStyle == StyleSGLang {
			c.prefix = "sglang:"
			delete(c.labels, "engine")
			if len(s.ranks) > 1 {
				c.labels["dp_rank"] = strconv.Itoa(rank)
			}
		}
		histogram := func(name, help string) prometheus.Histogram {
			return prometheus.NewHistogram(prometheus.HistogramOpts{Name: c.prefix + name, Help: help, ConstLabels: c.labels, Buckets: histogramBounds})
		}
		d.ttft = histogram("time_to_first_token_seconds", "Time from arrival to the first token.")
		d.latency = histogram("e2e_request_latency_seconds", "Time from arrival to the last token.")
		registry.MustRegister(c, d.ttft, d.latency)
	}
	began := prometheus.NewGauge(prometheus.GaugeOpts{Name: "process_start_time_seconds", Help: "Start time of the process since unix epoch in seconds."})
	began.Set(float64(s.began.UnixMilli()) / 1000)
	registry.MustRegister(began)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

// Describe announces nothing, which makes the collector an unchecked one.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	m, err := c.driver.stats()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	c.out = out
	if c.cfg.MetricsStyle == StyleSGLang {
		c.sglang(m)
	} else {
		c.vllm(m)
	}
}

// add sends a value with further labels, given as names and values in turn.
func (c collector) add(kind prometheus.ValueType, name, help string, value float64, more ...string) {
	var names, values []string
	for i := 0; i < len(more); i += 2 {
		names, values = append(names, more[i]), append(values, more[i+1])
	}
	c.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(c.prefix+name, help, names, c.labels), kind, value, values...)
}

func (c collector) gauge(name, help string, value float64, more ...string) {
	c.add(prometheus.GaugeValue, name, help, value, more...)
}

func (c collector) counter(name, help string, value int64, more ...string) {
	c.add(prometheus.CounterValue, name, help, float64(value), more...)
}

// sums sends a histogram without buckets.
func (c collector) sums(name, help string, count int64, sum float64) {
	c.out <- prometheus.MustNewConstHistogram(prometheus.NewDesc(c.prefix+name, help, nil, c.labels), uint64(count), sum, nil)
}

// usage is the share of KV memory that running jobs hold. Evictable blocks count as free, as in the
// engines.
func (m *Stats) usage() float64 { return float64(m.KVUsed-m.KVEvictable) / float64(m.KVTokens) }

// adapters sends vLLM's sample of the adapters in use, whose value is the time. vLLM repeats earlier ones.
func (c collector) adapters() {
	var lists [2][]string
	err := c.driver.do(func(time.Duration) {
		running, waiting := c.driver.model.Adapters()
		for _, name := range c.cfg.Adapters {
			for i, keys := range [2][]uint64{running, waiting} {
				if slices.Contains(keys, adapterKey(name)) {
					lists[i] = append(lists[i], name)
				}
			}
		}
	})
	if err == nil && c.cfg.AdapterSlots > 0 {
		c.out <- prometheus.MustNewConstMetric(
			prometheus.NewDesc("vllm:lora_requests_info", "Running stats on lora requests.", []string{"max_lora", "running_lora_adapters", "waiting_lora_adapters"}, nil),
			prometheus.GaugeValue, float64(time.Now().UnixMilli())/1000, fmt.Sprint(c.cfg.AdapterSlots), strings.Join(lists[0], ","), strings.Join(lists[1], ","))
	}
}

func (c collector) vllm(m Stats) {
	if c.labels["engine"] == "0" { // one sample for all ranks
		c.adapters()
	}
	c.gauge("num_requests_running", "Requests in model execution batches.", float64(m.Running))
	c.gauge("num_requests_waiting", "Requests waiting to be processed.", float64(m.Waiting))
	c.gauge("num_requests_waiting_by_reason", "Requests waiting, by reason.", float64(m.Waiting), "reason", "capacity")
	c.gauge("num_requests_waiting_by_reason", "Requests waiting, by reason.", 0, "reason", "deferred")
	c.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", m.usage())
	c.counter("prefix_cache_queries_total", "Prefix cache queries, in queried tokens.", m.PromptTokens)
	c.counter("prefix_cache_hits_total", "Prefix cache hits, in cached tokens.", m.CachedTokens)
	c.counter("num_preemptions_total", "Preemptions.", m.Preempted)
	c.counter("prompt_tokens_total", "Prefill tokens processed.", m.PromptTokens)
	c.counter("prompt_tokens_by_source_total", "Prompt tokens by source.", m.FirstComputed, "source", "local_compute")
	c.counter("prompt_tokens_by_source_total", "Prompt tokens by source.", m.CachedTokens, "source", "local_cache_hit")
	c.counter("prompt_tokens_by_source_total", "Prompt tokens by source.", m.LoadedTokens, "source", "external_kv_transfer")
	c.counter("prompt_tokens_cached_total", "Cached prompt tokens, transferred ones included.", m.CachedTokens+m.LoadedTokens)
	c.counter("generation_tokens_total", "Generation tokens processed.", m.OutputTokens)
	c.counter("request_success_total", "Requests by the reason they ended for.", m.Finished, "finished_reason", "length")
	c.counter("request_success_total", "Requests by the reason they ended for.", m.Cancelled, "finished_reason", "abort")
	c.sums("request_prefill_kv_computed_tokens", "New KV tokens computed during prefill.", m.Finished, float64(m.ComputedTokens))
	c.sums("request_prefill_time_seconds", "Time spent in the PREFILL phase.", m.Finished, m.PrefillTime.Seconds())
	c.gauge("cache_config_info", "Information of the LLMEngine CacheConfig.", 1, "block_size", fmt.Sprint(c.cfg.BlockTokens),
		"num_gpu_blocks", fmt.Sprint(c.cfg.KVTokens/c.cfg.BlockTokens), "enable_prefix_caching", "True")
}

func (c collector) sglang(m Stats) {
	c.gauge("num_running_reqs", "The number of running requests.", float64(m.Running))
	c.gauge("num_queue_reqs", "The number of requests in the waiting queue.", float64(m.Waiting))
	c.gauge("num_used_tokens", "The number of used tokens.", float64(m.KVUsed-m.KVEvictable))
	c.gauge("token_usage", "The token usage.", m.usage())
	c.gauge("cache_hit_rate", "The prefix cache hit rate.", float64(m.CachedTokens)/float64(max(m.PromptTokens, 1)))
	c.counter("cached_tokens_total", "Number of cached prompt tokens.", m.CachedTokens, "cache_source", "device")
	c.counter("prompt_tokens_total", "Number of prefill tokens processed.", m.PromptTokens)
	c.counter("generation_tokens_total", "Number of generation tokens processed.", m.OutputTokens)
	c.counter("num_requests_total", "Number of requests processed.", m.Finished)
	c.counter("num_aborted_requests_total", "Number of requests aborted.", m.Cancelled)
	c.gauge("cache_config_info", "Geometry of the KV cache.", 1, "page_size", fmt.Sprint(c.cfg.BlockTokens), "num_pages", fmt.Sprint(c.cfg.KVTokens/c.cfg.BlockTokens))
}
