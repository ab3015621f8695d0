package family

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"grapevine.example/chaos/report"
)

// measure is a figure of a run that is compared. A ratio is the judged policy's over another run's.
type measure struct {
	name string
	of   func(*report.Report) float64
	more bool // more is better
}

var measures = []measure{
	{"first token p99", func(r *report.Report) float64 { return r.TTFT.P99 }, false},
	{"first token mean", func(r *report.Report) float64 { return r.TTFT.Mean }, false},
	{"hits", func(r *report.Report) float64 { return r.HitRate }, true},
}

// Ratios that are good enough, and the least share of draws of each bar.
const (
	p99Median, p99P90, p99Worst = 0.95, 1.05, 1.25
	hitsLeast, hitsShare        = 0.97, 0.9
	worstDraws                  = 10
)

// good reports whether a ratio is within what the bars allow most draws.
func (m *measure) good(ratio float64) bool {
	if m.more {
		return ratio >= hitsLeast
	}
	return ratio <= p99P90
}

// ratio is NaN without another run, or if both are zero.
func (m *measure) ratio(r *Result, other *report.Report) float64 {
	if other == nil {
		return math.NaN()
	}
	return m.of(r.judged()) / m.of(other)
}

// best returns the other policy's run that is best in the measure; nil if there is no other policy.
func (m *measure) best(r *Result) *report.Report {
	others := r.others()
	if len(others) == 0 {
		return nil
	}
	return slices.MinFunc(others, func(a, b *report.Report) int {
		if m.more {
			a, b = b, a
		}
		return cmp.Compare(m.of(a), m.of(b))
	})
}

// rival is what the judged policy is compared with in each draw.
type rival struct {
	name string
	run  func(*measure, *Result) *report.Report
}

func rivals(oracles []string, results []Result) []rival {
	list := []rival{
		{"the best other policy", (*measure).best},
		{"itself on one node", func(_ *measure, r *Result) *report.Report { return r.alone() }},
	}
	names := OraclePolicies(oracles)
	if slices.ContainsFunc(results[0].Runs, func(r report.Report) bool { return r.Policy == WithEvents }) {
		names = append(names, WithEvents)
	}
	for _, name := range names {
		list = append(list, rival{name, func(_ *measure, r *Result) *report.Report { return r.run(name) }})
	}
	return list
}

// ratios returns the sorted ratios of the draws that have one.
func (m *measure) ratios(results []Result, against rival) (out []float64) {
	for i := range results {
		if x := m.ratio(&results[i], against.run(m, &results[i])); !math.IsNaN(x) {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

func median(v []float64) string { return quantile(v, 0.5) }

func number(x float64) string { return fmt.Sprintf("%.3f", x) }

// Write writes the distribution of ratios, the bars, medians by properties of the draws, and the ten
// worst draws. The results, at least one, are those of [Play] with these oracles.
func Write(w io.Writer, results []Result, oracles []string) error {
	list := rivals(oracles, results)
	rows := [][]string{{Judged + " over", "measure", "draws", "min", "p10", "median", "p90", "max", "good %"}}
	for _, against := range list {
		for i := range measures {
			m := &measures[i]
			v := m.ratios(results, against)
			row := append([]string{against.name, m.name, fmt.Sprint(len(v))}, quantiles(v)...)
			rows = append(rows, append(row, m.percent(v)))
		}
	}
	if err := report.WriteRows(w, rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nA ratio below 1 is better for times, above 1 for hits. Good: times at most %g, hits at least %g.\n\n%s\n", p99P90, hitsLeast, bars(results))
	if err := report.WriteRows(w, fixed(results)); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := report.WriteRows(w, byProperty(results, list)); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n"+worst(results))
	return err
}

// fixed compares p99 with each other policy by itself, as a site that had chosen it would.
func fixed(results []Result) [][]string {
	p99 := &measures[0]
	rows := [][]string{{"p99 over that of", "best other in", "min", "p10", "median", "p90", "max", "good %"}}
	for _, o := range results[0].others() {
		best := 0
		for i := range results {
			if p99.best(&results[i]).Policy == o.Policy {
				best++
			}
		}
		v := p99.ratios(results, rival{o.Policy, func(_ *measure, r *Result) *report.Report { return r.run(o.Policy) }})
		rows = append(rows, append(append([]string{o.Policy, fmt.Sprint(best)}, quantiles(v)...), p99.percent(v)))
	}
	return rows
}

func quantiles(v []float64) (row []string) {
	for _, q := range []float64{0, 0.1, 0.5, 0.9, 1} {
		row = append(row, quantile(v, q))
	}
	return row
}

func quantile(v []float64, q float64) string {
	if len(v) == 0 {
		return "-"
	}
	return number(report.Rank(v, q))
}

func (m *measure) percent(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", 100*m.share(v))
}

func (m *measure) share(v []float64) float64 {
	n := 0
	for _, x := range v {
		if m.good(x) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(v)))
}

// bars says whether the results are what is wanted of the policy.
func bars(results []Result) string {
	list := rivals(nil, results)
	var b strings.Builder
	line := func(text string, is, want float64, holds bool) {
		verdict := "holds"
		if !holds {
			verdict = "misses"
		}
		fmt.Fprintf(&b, "%s: %s, %.3f (wanted %.2f)\n", text, verdict, is, want)
	}
	if v := measures[0].ratios(results, list[0]); len(v) > 0 {
		for _, bar := range []struct {
			name    string
			q, want float64
		}{{"median", 0.5, p99Median}, {"p90", 0.9, p99P90}, {"worst", 1, p99Worst}} {
			is := report.Rank(v, bar.q)
			line("p99 over the best other policy, "+bar.name, is, bar.want, is <= bar.want)
		}
	}
	if v := measures[2].ratios(results, list[1]); len(v) > 0 {
		is := measures[2].share(v)
		line(fmt.Sprintf("hits at least %g of one node's, share of draws", hitsLeast), is, hitsShare, is >= hitsShare)
	}
	return b.String()
}

// property groups draws by a value of theirs.
type property struct {
	name string
	of   func(*Draw) string
}

var properties = []property{
	{"traffic", func(d *Draw) string { return d.Traffic[0].Kind }},
	{"nodes", func(d *Draw) string { return fmt.Sprint(d.Nodes) }},
	{"staleness", func(d *Draw) string {
		if d.Nodes == 1 {
			return "one node"
		}
		return fmt.Sprintf("%d ms", d.StalenessMS)
	}},
	{"load", func(d *Draw) string { return within(d.Load, "%.2f", 0.5, 0.75, 0.95) }},
	{"engines", func(d *Draw) string { return d.Fleet }},
	{"engines", func(d *Draw) string { return within(float64(d.Engines), "%.0f", 8, 16, 32) }},
	{"cache", func(d *Draw) string { return within(d.Cache, "%.1f", 0.6, 1.5, 3) }},
	{"arrivals", func(d *Draw) string { return d.Arrivals }},
	{"streamed", func(d *Draw) string { return fmt.Sprintf("%.0f %%", 100*d.Streamed) }},
	{"models", func(d *Draw) string { return fmt.Sprint(d.Models) }},
}

// within names the first limit that is not exceeded.
func within(x float64, format string, limits ...float64) string {
	i := slices.IndexFunc(limits, func(l float64) bool { return x <= l })
	return fmt.Sprintf("<= "+format, limits[i])
}

// byProperty has a row for each value of each property, with medians of the draws that have it.
func byProperty(results []Result, list []rival) [][]string {
	head := []string{"draws with", "number", "p99 / best other", "worst", "p99 / one node", "hits / one node"}
	for _, against := range list[2:] {
		head = append(head, "p99 / "+against.name)
	}
	rows := [][]string{head}
	p99, hits := &measures[0], &measures[2]
	for _, p := range properties {
		groups := map[string][]Result{}
		for _, r := range results {
			groups[p.of(&r.Draw)] = append(groups[p.of(&r.Draw)], r)
		}
		for _, name := range sorted(groups) {
			g := groups[name]
			v := p99.ratios(g, list[0])
			row := []string{p.name + ": " + name, fmt.Sprint(len(g)), median(v), quantile(v, 1), median(p99.ratios(g, list[1])), median(hits.ratios(g, list[1]))}
			for _, against := range list[2:] {
				row = append(row, median(p99.ratios(g, against)))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// sorted returns the names of groups in order of length, then of text, which puts limits in order.
func sorted(groups map[string][]Result) (names []string) {
	for name := range groups {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return names
}

// worst is empty if there is no other policy.
func worst(results []Result) string {
	p99 := &measures[0]
	if len(results[0].others()) == 0 {
		return ""
	}
	ordered := slices.Clone(results)
	slices.SortStableFunc(ordered, func(a, b Result) int { return -cmp.Compare(p99.ratio(&a, p99.best(&a)), p99.ratio(&b, p99.best(&b))) })
	var b strings.Builder
	fmt.Fprintf(&b, "Worst draws by p99 over the best other policy:\n")
	for i := range ordered[:min(worstDraws, len(ordered))] {
		r := &ordered[i]
		best := p99.best(r)
		fmt.Fprintf(&b, "%s  %s: %.2f s, %.1f %% hits; %s: %.2f s, %.1f %% hits\n       %s\n       %s\n",
			number(p99.ratio(r, best)), Judged, r.judged().TTFT.P99/1000, 100*r.judged().HitRate, best.Policy, best.TTFT.P99/1000, 100*best.HitRate,
			&r.Draw, r.Draw.Command())
	}
	return b.String()
}
