//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

// result is the whole race, enough to repeat it.
type result struct {
	Date      string               `json:"date"`
	Machine   string               `json:"machine"`
	Go        string               `json:"go"`
	Command   string               `json:"command"`
	Seed      uint64               `json:"seed"`
	DurationS float64              `json:"duration_s"`
	WarmupS   float64              `json:"warmup_s"`
	Engines   int                  `json:"engines"`
	Engine    []string             `json:"engine_flags"`
	Traffic   []*workload.Sessions `json:"traffic"`
	Versions  map[string]string    `json:"versions"` // by contender
	Skipped   map[string]string    `json:"skipped"`  // why, by contender
	Rows      []*row               `json:"rows"`
}

// row is the figures of one cell. CPU time is that of all the cell's routers, warm-up included.
type row struct {
	Contender     string        `json:"contender"`
	Traffic       string        `json:"traffic"`
	Routers       int           `json:"routers"`
	CompletedPerS float64       `json:"completed_per_s"` // ended between warm-up and the end of the traffic
	Cores         float64       `json:"router_cores"`
	RSSMiB        float64       `json:"router_rss_mib"` // at the end
	OthersCores   float64       `json:"others_cores"`   // what other programs on the machine used
	Configs       []string      `json:"configs"`        // one per router
	Report        replay.Result `json:"report"`
}

func (w *row) hits() float64 { return w.Report.HitRate }

func (w *row) p99() float64 { return w.Report.TTFT.P99 }

// sound reports whether at most 1 % of the requests failed. Failed requests have no latency, so a row
// with more would look faster than it is.
func (w *row) sound() bool { return 100*w.Report.Errors <= w.Report.Requests }

func (r *result) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, %s, seed %d, %.0f s a cell, the first %.0f s not counted\n", r.Machine, r.Go, r.Date, r.Seed, r.DurationS, r.WarmupS)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "  %-20s %s\n", name, r.Versions[name])
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, t := range r.Traffic {
		fmt.Fprintf(w, "\n%s\trouters\thits\tTTFT p50 ms\tp99\tmean\tcompleted/s\terrors\trouter cores\tRSS MiB\tsent late p99 ms\tothers' cores\t\n", t.Label)
		for _, x := range r.of(t.Label) {
			rep := &x.Report
			fmt.Fprintf(w, "%s\t%d\t%.3f\t%.0f\t%.0f\t%.0f\t%.1f\t%d\t%.2f\t%.0f\t%.0f\t%.2f\t\n", x.Contender, x.Routers, x.hits(),
				rep.TTFT.P50, rep.TTFT.P99, rep.TTFT.Mean, x.CompletedPerS, rep.Errors, x.Cores, x.RSSMiB,
				rep.Live.StartDelay.P99, x.OthersCores)
		}
		w.Flush()
	}
	b.WriteString("\n")
	for _, t := range r.Traffic {
		b.WriteString(verdict(t.Label, r.of(t.Label)))
	}
	return b.String()
}

func (r *result) of(kind string) []*row {
	return slices.DeleteFunc(slices.Clone(r.Rows), func(w *row) bool { return w.Traffic != kind })
}

// verdict compares grapevine's fleet with the best other fleet: at least 0.99 of its hits, and a
// lower p99 of the time to first token. It is empty without both.
func verdict(kind string, rows []*row) string {
	var own *row
	var others []*row
	for _, w := range rows {
		switch {
		case w.Routers != 3:
		case w.Contender == "grapevine":
			own = w
		case w.sound():
			others = append(others, w)
		}
	}
	if own == nil || len(others) == 0 {
		return ""
	}
	hits := slices.MaxFunc(others, func(a, b *row) int { return cmp.Compare(a.hits(), b.hits()) })
	tail := slices.MinFunc(others, func(a, b *row) int { return cmp.Compare(a.p99(), b.p99()) })
	return fmt.Sprintf("%s, 3 routers: hits %.3f, best other %.3f (%s): within 1 %% of the best %s; p99 %.0f ms, best other %.0f (%s): best %s\n",
		kind, own.hits(), hits.hits(), hits.Contender, met(own.sound() && own.hits() >= 0.99*hits.hits()),
		own.p99(), tail.p99(), tail.Contender, met(own.sound() && own.p99() <= tail.p99()))
}

func met(ok bool) string {
	if ok {
		return "met"
	}
	return "MISSED"
}
