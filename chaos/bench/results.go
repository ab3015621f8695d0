//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type report struct {
	Date    string     `json:"date"`
	Machine string     `json:"machine"`
	Go      string     `json:"go"`
	Command string     `json:"command"`
	Runs    []*results `json:"runs"`
}

// results are one run. Every list has one entry per round; rounds with equal index ran next to each
// other.
type results struct {
	Backend    string           `json:"backend"`
	Shows      string           `json:"shows"`
	Command    []string         `json:"command"`
	Contenders []*contender     `json:"contenders"`
	Throughput []throughputCell `json:"throughput"`
	Latency    []latencyCell    `json:"latency"`
	Streams    []streamsCell    `json:"streams"`
	// Others is the share of all CPUs that other programs used, per measurement.
	Others []float64 `json:"others_share"`
	waited time.Duration
	Bars   []bar `json:"bars"`
}

type throughputCell struct {
	Contender string    `json:"contender"`
	Bytes     int       `json:"body_bytes"`
	RPS       []float64 `json:"requests_per_s"`
	CPU       []float64 `json:"cpu_us_per_request"`
	// BackendCPU and BackendShare show whether the backend was the bottleneck.
	BackendCPU   []float64 `json:"backend_cpu_us_per_request"`
	BackendShare []float64 `json:"backend_share"`
	P50          []float64 `json:"p50_ms"`
	P99          []float64 `json:"p99_ms"`
	Errors       int64     `json:"errors"`
}

type latencyCell struct {
	Contender string    `json:"contender"`
	Bytes     int       `json:"body_bytes"`
	Rate      int       `json:"requests_per_s"`
	P50       []float64 `json:"p50_ms"`
	P99       []float64 `json:"p99_ms"`
	Errors    int       `json:"errors"`
}

type streamsCell struct {
	Contender    string    `json:"contender"`
	Streams      int       `json:"streams"`
	ChunksPerSec float64   `json:"chunks_per_s"`
	P50          []float64 `json:"chunk_delay_p50_ms"`
	P99          []float64 `json:"chunk_delay_p99_ms"`
	CPU          []float64 `json:"cpu_us_per_chunk"`
	RSS          []float64 `json:"rss_mib"`
	Errors       int       `json:"errors"`
	Surplus      int       `json:"surplus_usage_chunks"`
	FirstError   string    `json:"first_error,omitempty"`
}

type bar struct {
	What string  `json:"what"`
	Want string  `json:"want"`
	Got  float64 `json:"got"`
	OK   bool    `json:"ok"`
}

func newReport() *report {
	return &report{Date: time.Now().UTC().Format(time.RFC3339), Machine: machine(), Go: runtime.Version(), Command: strings.Join(os.Args, " ")}
}

func newResults(st *stage) *results {
	return &results{Backend: st.kind.name, Shows: st.kind.shows, Contenders: st.field}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *results) addThroughput(name string, bytes int, w wrkResult, used spent) {
	i := slices.IndexFunc(r.Throughput, func(c throughputCell) bool { return c.Contender == name && c.Bytes == bytes })
	if i < 0 {
		r.Throughput = append(r.Throughput, throughputCell{Contender: name, Bytes: bytes})
		i = len(r.Throughput) - 1
	}
	c := &r.Throughput[i]
	c.RPS = append(c.RPS, float64(w.Requests)/(float64(w.DurationUS)/1e6))
	c.CPU = append(c.CPU, float64(used.proxy.Microseconds())/float64(max(1, w.Requests)))
	c.BackendCPU = append(c.BackendCPU, float64(used.backend.Microseconds())/float64(max(1, w.Requests)))
	c.BackendShare = append(c.BackendShare, used.backendShare)
	c.P50 = append(c.P50, float64(w.P50US)/1e3)
	c.P99 = append(c.P99, float64(w.P99US)/1e3)
	c.Errors += w.errors()
}

func (r *results) addLatency(name string, s bodySize, p pacedResult) {
	i := slices.IndexFunc(r.Latency, func(c latencyCell) bool { return c.Contender == name && c.Bytes == s.bytes })
	if i < 0 {
		r.Latency = append(r.Latency, latencyCell{Contender: name, Bytes: s.bytes, Rate: s.rate})
		i = len(r.Latency) - 1
	}
	c := &r.Latency[i]
	c.P50 = append(c.P50, ms(p.quantile(0.50)))
	c.P99 = append(c.P99, ms(p.quantile(0.99)))
	c.Errors += p.errors
}

func (r *results) addStreams(name string, load streamLoad, s streamResult, used spent) {
	i := slices.IndexFunc(r.Streams, func(c streamsCell) bool { return c.Contender == name })
	if i < 0 {
		r.Streams = append(r.Streams, streamsCell{Contender: name, Streams: load.count,
			ChunksPerSec: float64(load.count) / load.period.Seconds()})
		i = len(r.Streams) - 1
	}
	c := &r.Streams[i]
	c.P50 = append(c.P50, ms(quantile(s.delays, 0.50)))
	c.P99 = append(c.P99, ms(quantile(s.delays, 0.99)))
	c.CPU = append(c.CPU, float64(used.proxy.Microseconds())/float64(max(1, len(s.delays))))
	c.RSS = append(c.RSS, float64(s.peakBytes)/(1<<20))
	c.Errors += s.errors
	c.Surplus += s.surplus
	if c.FirstError == "" && s.firstErr != nil {
		c.FirstError = s.firstErr.Error()
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}

// paired is the median over rounds of f(a, b), because neighbouring rounds share their
// disturbances.
func paired(a, b []float64, f func(a, b float64) float64) float64 {
	v := make([]float64, 0, len(a))
	for i := range min(len(a), len(b)) {
		v = append(v, f(a[i], b[i]))
	}
	return median(v)
}

func ratio(a, b float64) float64 { return a / b }
func minus(a, b float64) float64 { return a - b }

func (r *results) judge() {
	for _, s := range bodySizes {
		g, n := r.throughput("grapevine", s.bytes), r.throughput("nginx", s.bytes)
		if g != nil && n != nil {
			got := paired(g.RPS, n.RPS, ratio)
			r.Bars = append(r.Bars, bar{fmt.Sprintf("requests/s at %s against nginx", sizeName(s.bytes)), ">= 0.90", got, got >= 0.9})
		}
		gl, nl := r.latency("grapevine", s.bytes), r.latency("nginx", s.bytes)
		if gl != nil && nl != nil {
			got := paired(gl.P99, nl.P99, minus)
			r.Bars = append(r.Bars, bar{fmt.Sprintf("p99 at %s and %d/s beyond nginx's, ms", sizeName(s.bytes), s.rate), "<= 1.00", got, got <= 1})
		}
	}
	if g, n := r.streams("grapevine"), r.streams("nginx"); g != nil && n != nil {
		got := paired(g.P99, n.P99, minus)
		r.Bars = append(r.Bars, bar{fmt.Sprintf("p99 chunk delay of %d streams beyond nginx's, ms", g.Streams), "<= 1.00", got, got <= 1})
	}
	r.Bars = append(r.Bars, bar{"failed requests and streams of grapevine", "0", float64(r.failures("grapevine")), r.failures("grapevine") == 0})
}

func (r *results) failures(name string) int64 {
	var n int64
	for _, c := range r.Throughput {
		if c.Contender == name {
			n += c.Errors
		}
	}
	for _, c := range r.Latency {
		if c.Contender == name {
			n += int64(c.Errors)
		}
	}
	for _, c := range r.Streams {
		if c.Contender == name {
			n += int64(c.Errors + c.Surplus)
		}
	}
	return n
}

func (r *report) passed() bool {
	return !slices.ContainsFunc(r.Runs, func(res *results) bool { return !res.passed() })
}

func (r *results) passed() bool {
	return !slices.ContainsFunc(r.Bars, func(b bar) bool { return !b.OK })
}

func (r *results) throughput(name string, bytes int) *throughputCell {
	for i := range r.Throughput {
		if r.Throughput[i].Contender == name && r.Throughput[i].Bytes == bytes {
			return &r.Throughput[i]
		}
	}
	return nil
}

func (r *results) latency(name string, bytes int) *latencyCell {
	for i := range r.Latency {
		if r.Latency[i].Contender == name && r.Latency[i].Bytes == bytes {
			return &r.Latency[i]
		}
	}
	return nil
}

func (r *results) streams(name string) *streamsCell {
	for i := range r.Streams {
		if r.Streams[i].Contender == name {
			return &r.Streams[i]
		}
	}
	return nil
}

func sizeName(bytes int) string { return fmt.Sprintf("%d KiB", bytes>>10) }

func (r *report) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, %s\n", r.Machine, r.Go, r.Date)
	if len(r.Runs) > 0 {
		for _, c := range r.Runs[0].Contenders {
			fmt.Fprintf(&b, "  %-10s %s\n", c.Name, c.Version)
		}
	}
	for _, res := range r.Runs {
		fmt.Fprintf(&b, "\n== backend %s: %s ==\n", res.Backend, res.Shows)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		res.tables(w)
		w.Flush()
	}
	return b.String()
}

func (r *results) tables(w *tabwriter.Writer) {
	r.throughputTables(w)
	r.latencyTables(w)
	if len(r.Streams) > 0 {
		fmt.Fprintf(w, "\n%d slow streams, %.0f chunks/s together\n\tdelay p50 ms\tp99 ms\tadded p50\tadded p99\tCPU us/chunk\tRSS MiB\terrors\t\n",
			r.Streams[0].Streams, r.Streams[0].ChunksPerSec)
		direct := r.streams("direct")
		for _, x := range r.Contenders {
			if c := r.streams(x.Name); c != nil {
				fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%.0f\t%d\t\n", x.Name, median(c.P50), median(c.P99),
					paired(c.P50, direct.P50, minus), paired(c.P99, direct.P99, minus), cpuText(x, c.CPU), median(c.RSS), c.Errors+c.Surplus)
			}
		}
	}
	if len(r.Others) > 0 {
		fmt.Fprintf(w, "\nothers took %.0f %% of the machine (median of measurements; worst %.0f %%)\n", 100*median(r.Others), 100*slices.Max(r.Others))
	}
	fmt.Fprintf(w, "\nbars\n\twanted\tmeasured\t\t\n")
	for _, x := range r.Bars {
		verdict := "met"
		if !x.OK {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%.3f\t%s\t\n", x.What, x.Want, x.Got, verdict)
	}
}

func (r *results) throughputTables(w *tabwriter.Writer) {
	if len(r.Throughput) == 0 {
		return
	}
	for _, s := range bodySizes {
		fmt.Fprintf(w, "\n%s bodies, as fast as they are answered\n\trequests/s\tmin\tmax\tCPU us/request\tbackend's\tbackend's share\tp50 ms\tp99 ms\terrors\t\n", sizeName(s.bytes))
		for _, x := range r.Contenders {
			if c := r.throughput(x.Name, s.bytes); c != nil {
				fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%s\t%.1f\t%.0f %%\t%.2f\t%.2f\t%d\t\n", x.Name, median(c.RPS), slices.Min(c.RPS), slices.Max(c.RPS),
					cpuText(x, c.CPU), median(c.BackendCPU), 100*median(c.BackendShare), median(c.P50), median(c.P99), c.Errors)
			}
		}
		if c := r.throughput("grapevine", s.bytes); c != nil && median(c.BackendShare) > 0.5 {
			fmt.Fprintf(w, "the backend takes more than half of all CPUs: it sets the pace here\n")
		}
	}
}

func (r *results) latencyTables(w *tabwriter.Writer) {
	for _, s := range bodySizes {
		direct := r.latency("direct", s.bytes)
		if direct == nil {
			return
		}
		fmt.Fprintf(w, "\n%s bodies at %d requests/s, from the time each was due\n\tp50 ms\tp99 ms\tadded p50\tadded p99\terrors\t\n", sizeName(s.bytes), s.rate)
		for _, x := range r.Contenders {
			if c := r.latency(x.Name, s.bytes); c != nil {
				fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", x.Name, median(c.P50), median(c.P99),
					paired(c.P50, direct.P50, minus), paired(c.P99, direct.P99, minus), c.Errors)
			}
		}
	}
}

func cpuText(c *contender, v []float64) string {
	if c.proc == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", median(v))
}
