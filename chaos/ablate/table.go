package main

import (
	"fmt"
	"io"
	"math"
	"slices"

	"grapevine.example/chaos/report"
)

// measures are compared as differences, of which a large one is bad.
var measures = []struct {
	name string
	of   func(with, original outcome) float64
	show func(mean, scatter, worst float64, draw int) string
}{
	{"p99", func(w, o outcome) float64 { return math.Log(w.P99 / o.P99) }, ratio},
	{"mean", func(w, o outcome) float64 { return math.Log(w.Mean / o.Mean) }, ratio},
	{"hits", func(w, o outcome) float64 { return 100 * (o.Hits - w.Hits) }, points},
}

func ratio(mean, scatter, worst float64, draw int) string {
	return fmt.Sprintf("%.3f +- %.3f (%.2f in %d)", math.Exp(mean), math.Exp(mean)*scatter, math.Exp(worst), draw)
}

func points(mean, scatter, worst float64, draw int) string {
	return fmt.Sprintf("%+.2f +- %.2f (%+.1f in %d)", 0-mean, scatter, 0-worst, draw)
}

// cells shows a variant's effects in the draws with so many nodes or more, and the number of draws that it
// changes: mean, twice its standard error, the worst and its draw. The last cell says whether no mean exceeds
// that error.
func cells(original, with []outcome, nodes int) (row []string) {
	none := true
	for _, m := range measures {
		var sum, squares, n float64
		worst, draw := math.Inf(-1), 0
		for i, o := range original {
			if d := m.of(with[i], o); o.Nodes >= nodes {
				sum, squares, n = sum+d, squares+d*d, n+1
				if d > worst {
					worst, draw = d, i+1
				}
			}
		}
		if n < 2 {
			row = append(row, "-")
			continue
		}
		mean := sum / n
		scatter := 2 * math.Sqrt(max(squares/n-mean*mean, 0)/(n-1))
		row, none = append(row, m.show(mean, scatter, worst, draw)), none && math.Abs(mean) <= scatter
	}
	changed := 0
	for i, o := range original {
		if o.Nodes >= nodes && with[i] != o {
			changed++
		}
	}
	verdict := ""
	if none {
		verdict = "no effect"
	}
	return append(row, fmt.Sprint(changed), verdict)
}

// write writes a row for each variant, again for the draws with several nodes, and what each variant is. Draws
// are numbered from 1.
func write(w io.Writer, original []outcome, variants []variant, played [][]outcome) error {
	fmt.Fprint(w, `Ratios of first-token times without a mechanism, or with another constant, to those of the code as it is: geometric mean +- twice
its standard error (worst, and its draw). Hits: differences in percentage points. Changed: draws. No effect: all three lie within
that error.

`)
	for nodes, title := range []string{"", "Draws with several nodes:\n\n"} {
		rows := [][]string{{"variant", "p99", "mean", "hits", "changed", ""}}
		for i, v := range variants {
			rows = append(rows, slices.Insert(cells(original, played[i], nodes+1), 0, v.name))
		}
		fmt.Fprint(w, title)
		if err := report.WriteRows(w, rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, v := range variants {
		fmt.Fprintf(w, "%s: %s\n", v.name, v.does)
	}
	return nil
}
