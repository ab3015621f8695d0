//go:build linux

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

type report struct {
	Date    string `json:"date"`
	Machine string `json:"machine"`
	Go      string `json:"go"`
	Command string `json:"command"`
	Runs    []*run `json:"runs"`
}

// run is what one kind of backend yields.
type run struct {
	Backend    string       `json:"backend"`
	Shows      string       `json:"shows"`
	Contenders []*contender `json:"contenders"`
	Tables     []*table     `json:"tables"`
	// Others is the share of all CPUs that other programs used, per measurement.
	Others []float64 `json:"others_share"`
}

type table struct {
	Title  string             `json:"title"`
	Series map[string]*series `json:"series"` // by contender
	phase  phase
}

// series has one entry per round in every list; rounds with equal index ran next to each other.
type series struct {
	Values map[string][]float64 `json:"values"`
	Errors int                  `json:"errors"`
}

type column struct {
	heading, format string
	of              func(s, direct *series) float64 // NaN if not measured
}

type bar struct {
	What string
	Want string
	key  string // the value that is compared: the rate as a ratio, times as a difference
}

func (s *series) add(x sample) {
	for key, v := range x.values {
		s.Values[key] = append(s.Values[key], v)
	}
	s.Errors += x.errors
}

func of(f func([]float64) float64, key string) func(s, _ *series) float64 {
	return func(s, _ *series) float64 { return f(s.Values[key]) }
}

// addedOf is the difference from direct access.
func addedOf(key string) func(s, direct *series) float64 {
	return func(s, direct *series) float64 { return paired(s.Values[key], direct.Values[key], minus) }
}

// median is NaN without values.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
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

func (r *report) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, %s\n", r.Machine, r.Go, r.Date)
	for _, c := range r.Runs[0].Contenders {
		fmt.Fprintf(&b, "  %-10s %s\n", c.Name, c.Version)
	}
	for _, run := range r.Runs {
		fmt.Fprintf(&b, "\n== backend %s: %s ==\n", run.Backend, run.Shows)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, t := range run.Tables {
			t.print(w, run.Contenders)
		}
		fmt.Fprintf(w, "\nothers took %.0f %% of the machine (median of measurements; worst %.0f %%)\n", 100*median(run.Others), 100*slices.Max(run.Others))
		run.printBars(w)
		w.Flush()
	}
	return b.String()
}

func (t *table) print(w *tabwriter.Writer, field []*contender) {
	fmt.Fprintf(w, "\n%s\n", t.Title)
	for _, c := range t.phase.columns {
		fmt.Fprintf(w, "\t%s", c.heading)
	}
	fmt.Fprintf(w, "\terrors\t\n")
	for _, x := range field {
		s := t.Series[x.Name]
		if s == nil {
			continue
		}
		fmt.Fprint(w, x.Name)
		for _, c := range t.phase.columns {
			if v := c.of(s, t.Series["direct"]); math.IsNaN(v) {
				fmt.Fprintf(w, "\t-")
			} else {
				fmt.Fprintf(w, "\t"+c.format, v)
			}
		}
		fmt.Fprintf(w, "\t%d\t\n", s.Errors)
	}
	if g := t.Series["grapevine"]; g != nil && t.phase.bar.key == rate && median(g.Values[backendShare]) > 50 {
		fmt.Fprintf(w, "the backend takes more than half of all CPUs: it sets the pace here\n")
	}
}

func (r *run) printBars(w *tabwriter.Writer) {
	fmt.Fprintf(w, "\nbars\n\twanted\tmeasured\t\t\n")
	failures := 0
	for _, t := range r.Tables {
		g, n := t.Series["grapevine"], t.Series["nginx"]
		if g == nil || n == nil {
			continue
		}
		failures += g.Errors
		key := t.phase.bar.key
		got, met := paired(g.Values[key], n.Values[key], minus), false
		if met = got <= 1; key == rate {
			got = paired(g.Values[key], n.Values[key], ratio)
			met = got >= 0.9
		}
		fmt.Fprintf(w, "%s\t%s\t%.3f\t%s\t\n", t.phase.bar.What, t.phase.bar.Want, got, verdict(met))
	}
	fmt.Fprintf(w, "failed requests and streams of grapevine\t0\t%d\t%s\t\n", failures, verdict(failures == 0))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}
