package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metrics is the state of an endpoint, summed over its data-parallel ranks, or of one rank; -1 means not reported.
type Metrics struct {
	Running  int     // requests
	Waiting  int     // requests
	KVUsage  float64 // 0 to 1, mean over ranks
	KVTokens int64
	// Prompt tokens looked up and found in the prefix cache.
	QueriedTokens, HitTokens int64
	Started                  float64
	// Queued is the prompt tokens that they have yet to compute.
	Queued int64
	// Computed is the prompt tokens that they have computed since their start, and ComputeTime the mean time
	// per engine in which they did, so the quotient of their growths is the rate of all. vLLM counts finished
	// requests only.
	Computed    int64
	ComputeTime time.Duration
	Prefills    int64 // the finished requests, of vLLM
	// Of vLLM's requests with a first token: how many, and their prompt tokens that it computed. Not of several ranks.
	FirstTokens, FirstComputed int64
	Age                        time.Duration // of the counts when the engine answered; 0 or more
	Fetches
}

// Fetches are totals since the start of what lower tiers brought; -1 means not reported.
type Fetches struct {
	// Loaded is the prompt tokens whose KV blocks came into GPU memory, those from disk included, and LoadTime how long that took.
	Loaded   int64
	LoadTime time.Duration
	// Read is those from disk, and ReadTime how long they took to come into CPU memory.
	Read     int64
	ReadTime time.Duration
}

var noFetches = Fetches{-1, -1, -1, -1}

// unknownMetrics has the fields that are not reported.
var unknownMetrics = Metrics{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, noFetches}

// maxLine is in bytes; labels take a few hundred.
const maxLine = 64 << 10

type sample uint8

const (
	running sample = iota
	waiting
	usage
	queries
	hits
	geometry // the labels hold the values
	capacity
	started
	computed
	computeTime // seconds
	prefills
	firstTokens
	loaded
	bySource // by the label source
	fromHost
	fromDisk
	firstComputed
	loadTime // seconds
	readTime // seconds

	samples
)

// Engines report old and new names side by side; the lowest spelling present counts.
var metricNames = map[string]struct {
	what     sample
	spelling int
}{
	"vllm:num_requests_running":       {running, 0},
	"sglang:num_running_reqs":         {running, 0},
	"vllm:num_requests_waiting":       {waiting, 0},
	"sglang:num_queue_reqs":           {waiting, 0},
	"vllm:kv_cache_usage_perc":        {usage, 0},
	"vllm:gpu_cache_usage_perc":       {usage, 1},
	"sglang:token_usage":              {usage, 0},
	"vllm:prefix_cache_queries_total": {queries, 0},
	"vllm:prefix_cache_queries":       {queries, 1},

	"vllm:gpu_prefix_cache_queries_total": {queries, 2},
	"vllm:gpu_prefix_cache_queries":       {queries, 3},
	"vllm:prefix_cache_hits_total":        {hits, 0},
	"vllm:prefix_cache_hits":              {hits, 1},
	"vllm:gpu_prefix_cache_hits_total":    {hits, 2},
	"vllm:gpu_prefix_cache_hits":          {hits, 3},
	"sglang:prompt_tokens_total":          {queries, 0},
	"sglang:prompt_tokens":                {queries, 1},
	"sglang:cached_tokens_total":          {hits, 0},
	"sglang:cached_tokens":                {hits, 1},
	"vllm:cache_config_info":              {geometry, 0},
	"sglang:cache_config_info":            {geometry, 0},
	"sglang:max_total_num_tokens":         {capacity, 0},
	"process_start_time_seconds":          {started, 0},

	"vllm:request_prefill_kv_computed_tokens_sum": {computed, 0},
	"vllm:request_prefill_time_seconds_sum":       {computeTime, 0},
	"vllm:request_prefill_time_seconds_count":     {prefills, 0},

	"vllm:time_to_first_token_seconds_count":    {firstTokens, 0},
	"vllm:prompt_tokens_by_source_total":        {bySource, 0},
	"vllm:prompt_tokens_cached_by_source_total": {bySource, 0},
	"vllm:kv_offload_load_time_total":           {loadTime, 0},
	"vllm:kv_offload_tiering_read_time_total":   {readTime, 0},
	"sglang:load_back_tokens_total":             {loaded, 0},
	"sglang:load_back_duration_seconds_sum":     {loadTime, 0},
}

const spellings = 4

// ParseMetrics reads Prometheus' text format. It fails only if r does or a line exceeds 64 KiB.
func ParseMetrics(r io.Reader) (Metrics, error) { return parseMetrics(r, nil) }

// ParseRank reads the metrics of one data-parallel rank, and those that all ranks share. It fails if the page does not have the rank.
// A node of several has ranks from 0 under the labels of the whole engine, so labels are counted.
func ParseRank(page []byte, rank int) (Metrics, error) {
	labels := Ranks(page)
	if rank >= len(labels) {
		return unknownMetrics, fmt.Errorf("engine metrics: of %d data-parallel ranks, none is the wanted one, %d", len(labels), rank)
	}
	return parseMetrics(bytes.NewReader(page), []byte(labels[rank]))
}

// Ranks returns the labels of the data-parallel ranks on a metrics page in their order: none if the page does not tell ranks apart.
func Ranks(page []byte) (labels []string) {
	for line := range bytes.Lines(page) {
		name, pairs, _ := splitSample(bytes.TrimSpace(line))
		if _, known := metricNames[string(name)]; !known {
			continue
		}
		if label := rankLabel(pairs); label != nil && !slices.Contains(labels, string(label)) {
			if labels = append(labels, string(label)); len(labels) > maxRanks {
				return nil
			}
		}
	}
	slices.SortFunc(labels, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	return labels
}

const maxRanks = 1024

func rankLabel(pairs []byte) (rank []byte) {
	for name, value := range labelPairs(pairs) {
		if string(name) == "engine" || string(name) == "dp_rank" { // vLLM, SGLang
			rank = value
		}
	}
	return rank
}

// parseMetrics reads the samples of one rank and those without a rank, or all if rank is nil.
func parseMetrics(r io.Reader, rank []byte) (Metrics, error) {
	var sums [samples][spellings]struct {
		total float64
		n     int
	}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4<<10), maxLine)
	for in.Scan() {
		line := in.Bytes()
		name, labels, rest := splitSample(line)
		m, ok := metricNames[string(name)]
		if !ok {
			continue
		}
		if rank != nil {
			if label := rankLabel(labels); label != nil && !bytes.Equal(label, rank) {
				continue
			}
		}
		var v float64
		switch m.what {
		case geometry:
			v, ok = tokensOf(labels)
		case bySource:
			if v, ok = number(rest); ok {
				m.what, ok = sourceOf(labels)
			}
		default:
			v, ok = number(rest)
		}
		if ok {
			s := &sums[m.what][m.spelling]
			if s.total += v; m.what == started {
				s.total = max(s.total-v, v)
			}
			s.n++
		}
	}
	if err := in.Err(); err != nil {
		return unknownMetrics, fmt.Errorf("engine metrics: %w", err)
	}
	sum := func(what sample) (float64, int) {
		for _, s := range sums[what] {
			if s.n > 0 {
				return s.total, s.n
			}
		}
		return -1, 1
	}
	whole := func(what sample) int64 {
		v, _ := sum(what)
		return int64(math.Min(v, 1<<62))
	}
	out := unknownMetrics
	out.Running, out.Waiting, out.KVTokens = int(whole(running)), int(whole(waiting)), whole(geometry)
	out.QueriedTokens, out.HitTokens = whole(queries), whole(hits)
	out.Started, _ = sum(started)
	if out.KVTokens < 0 {
		out.KVTokens = whole(capacity)
	}
	total, engines := sum(usage)
	out.KVUsage = total / float64(engines)
	seconds, n := sum(computeTime)
	if c, p := whole(computed), whole(prefills); seconds >= 0 && c >= 0 && p >= 0 {
		out.Computed, out.Prefills = c, p
		out.ComputeTime = time.Duration(min(seconds/float64(n), maxCount/1e6) * float64(time.Second))
	}
	if _, ranks := sum(firstTokens); ranks == 1 { // the sum of several says nothing of each
		out.FirstTokens, out.FirstComputed = whole(firstTokens), whole(firstComputed)
	}
	duration := func(what sample) time.Duration {
		if v, _ := sum(what); v >= 0 {
			return time.Duration(min(v, maxCount/1e6) * float64(time.Second))
		}
		return -1
	}
	out.Loaded, out.LoadTime, out.Read, out.ReadTime = whole(loaded), duration(loadTime), whole(fromDisk), duration(readTime)
	if host := whole(fromHost); host >= 0 {
		out.Loaded = host + max(out.Read, 0)
	}
	return out, nil
}

// sourceOf returns what a sample of vLLM's prompt tokens counts: those that it computed, or that came from a lower tier of the cache.
// It is not ok for other sources.
func sourceOf(labels []byte) (what sample, ok bool) {
	for name, value := range labelPairs(labels) {
		if string(name) != "source" {
			continue
		}
		switch string(value) {
		case "local_compute":
			return firstComputed, true
		case "host":
			return fromHost, true
		case "disk":
			return fromDisk, true
		}
	}
	return 0, false
}

func splitSample(line []byte) (name, labels, rest []byte) {
	i := bytes.IndexAny(line, "{ \t")
	if i <= 0 || line[0] == '#' {
		return nil, nil, nil
	}
	if line[i] != '{' {
		return line[:i], nil, line[i:]
	}
	for j := i + 1; j < len(line); j++ {
		switch line[j] {
		case '"':
			if j = skipString(line, j); j < 0 {
				return nil, nil, nil
			}
			j--
		case '}':
			return line[:i], line[i+1 : j], line[j+1:]
		}
	}
	return nil, nil, nil
}

// number is not ok if negative, NaN or infinite.
func number(rest []byte) (float64, bool) {
	rest = bytes.TrimLeft(rest, " \t")
	if i := bytes.IndexAny(rest, " \t\r"); i >= 0 {
		rest = rest[:i]
	}
	v, err := strconv.ParseFloat(string(rest), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, false
	}
	return v, true
}

func tokensOf(labels []byte) (float64, bool) {
	size, count := 0.0, 0.0
	for name, value := range labelPairs(labels) {
		v, ok := number(value)
		if !ok {
			continue
		}
		switch string(name) {
		case "block_size", "page_size":
			size = v
		case "num_gpu_blocks", "num_pages":
			count = v
		}
	}
	return size * count, size > 0 && count > 0
}

// labelPairs yields names and values, which stay escaped, up to the first malformed pair.
func labelPairs(labels []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for len(labels) > 0 {
			eq := bytes.IndexByte(labels, '=')
			if eq < 0 || eq+1 >= len(labels) || labels[eq+1] != '"' {
				return
			}
			end := skipString(labels, eq+1)
			if end < 0 || !yield(bytes.Trim(labels[:eq], ", "), labels[eq+2:end-1]) {
				return
			}
			labels = labels[end:]
		}
	}
}
