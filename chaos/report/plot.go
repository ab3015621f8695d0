package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"grapevine.example/chaos/plot"
)

// ErrPlot is wrapped by every error of drawing.
var ErrPlot = errors.New("plot")

const (
	plotWidth   = 960
	plotLeft    = 62
	legendLeft  = plotWidth - 140
	panelWidth  = legendLeft - 14 - plotLeft
	panelHeight = 172
	panelStep   = 230
	plotTop     = 56
	// maxNamed bounds the columns of dots with names below; beyond it only colours identify them.
	maxNamed = 7
)

var dashes = []string{"", "6 2", "2 2", "8 2 2 2"}

// WriteSVG draws hit rate, TTFT and the engines' load.
func WriteSVG(w io.Writer, runs ...Report) error {
	if len(runs) == 0 {
		return fmt.Errorf("%w: no runs", ErrPlot)
	}
	for i := range runs {
		if len(runs[i].Series) == 0 {
			return fmt.Errorf("%w: the run of %s has no requests", ErrPlot, name(runs, i))
		}
	}
	p := plot.New(plotWidth, plotTop+4*panelStep)
	p.Text(plotWidth/2, 22, `text-anchor="middle" font-size="15"`, title(runs))
	courses(p, runs)
	loads(panel(p, 3), runs)
	for i := range runs {
		y := plotTop + 8 + 18*float64(i)
		p.Rule(legendLeft, y, legendLeft+22, y, stroke(i))
		p.Text(legendLeft+28, y+4, "", name(runs, i))
	}
	_, err := io.WriteString(w, p.SVG())
	return err
}

func panel(p *plot.Picture, n int) plot.Panel {
	return plot.Panel{Picture: p, Left: plotLeft, Top: plotTop + panelStep*float64(n), Width: panelWidth, Height: panelHeight}
}

func stroke(i int) string {
	width := 1.4
	if i == 0 {
		width = 2.4
	}
	return fmt.Sprintf(`stroke="%s" stroke-width="%g" stroke-dasharray="%s"`, plot.Colour(i), width, dashes[i/4%len(dashes)])
}

func title(runs []Report) string {
	r := &runs[0]
	if r.Workload == "" {
		return fmt.Sprintf("%d engines", len(r.Backends))
	}
	t := fmt.Sprintf("%s, %d engines", r.Workload, len(r.Backends))
	if r.Speed != 0 && r.Speed != 1 {
		t += fmt.Sprintf(", speed %g", r.Speed)
	}
	return t
}

func name(runs []Report, i int) string {
	r := &runs[i]
	out := r.Policy
	nodes := func(r *Report) string { return fmt.Sprintf("%d nodes", r.Nodes) }
	for _, of := range []func(*Report) string{nodes, (*Report).share, (*Report).staleness} {
		if slices.ContainsFunc(runs, func(other Report) bool { return of(&other) != of(r) }) {
			out += ", " + of(r)
		}
	}
	return out
}

const floor = 1e-3

func courses(p *plot.Picture, runs []Report) {
	end := 0.0
	for i := range runs {
		end = max(end, runs[i].Series[len(runs[i].Series)-1].To)
	}
	unit, scale := "s", 1.0
	if end > 1200 {
		unit, scale = "min", 60
	}
	for n, q := range []struct {
		title string
		log   bool
		pick  func(*Bucket) float64
	}{
		{"Hit rate: cached / prompt tokens (%)", false, func(b *Bucket) float64 { return 100 * b.HitRate }},
		{"Time to first token, median (log scale)", true, func(b *Bucket) float64 { return max(b.TTFT.P50/1000, floor) }},
		{"Time to first token, 99th percentile (log scale)", true, func(b *Bucket) float64 { return max(b.TTFT.P99/1000, floor) }},
	} {
		lines := make([][]plot.Point, len(runs))
		lo, hi := math.Inf(1), floor*10
		for i := range runs {
			for j := range runs[i].Series {
				if b := &runs[i].Series[j]; b.Requests > 0 {
					v := q.pick(b)
					lo, hi = min(lo, v), max(hi, v)
					lines[i] = append(lines[i], plot.Point{X: (b.From + b.To) / 2 / scale, Y: v})
				}
			}
		}
		f := panel(p, n)
		f.Across, f.Up = plot.Even(0, end/scale, 8), plot.Even(0, 100, 5)
		if q.log {
			f.Up = plot.Decades(math.Pow(10, math.Floor(math.Log10(min(lo, hi))+1e-9)), math.Pow(10, math.Ceil(math.Log10(hi)-1e-9)), seconds, 1)
		}
		f.Frame(q.title)
		p.Text(f.Left+f.Width/2, f.Top+f.Height+28, `text-anchor="middle" fill="#444"`, "time of arrival ("+unit+")")
		for i := len(lines) - 1; i >= 0; i-- {
			f.Line(lines[i], stroke(i))
		}
	}
}

func seconds(s float64) string {
	if s < 0.9 {
		return strconv.FormatFloat(s*1000, 'g', 3, 64) + " ms"
	}
	return strconv.FormatFloat(s, 'f', 0, 64) + " s"
}

// loads draws the requests of each engine: a column of dots per run.
func loads(f plot.Panel, runs []Report) {
	f.Across = plot.Axis{Lo: -0.5, Hi: float64(len(runs)) - 0.5}
	top := 150.0
	dots := make([][]plot.Point, len(runs))
	for i := range runs {
		if len(runs) <= maxNamed {
			f.Across.Ticks = append(f.Across.Ticks, plot.Tick{At: float64(i), Label: name(runs, i)})
		}
		bs := runs[i].Backends
		mean := float64(runs[i].Requests) / float64(max(1, len(bs)))
		for j, b := range bs {
			at := plot.Point{X: float64(i) + 0.5*(float64(j)+0.5)/float64(len(bs)) - 0.25, Y: 100 * float64(b.Requests) / max(1, mean)}
			dots[i] = append(dots[i], at)
			top = max(top, at.Y*1.08)
		}
	}
	f.Up = plot.Even(0, top, 5)
	f.Frame("Requests per engine, one dot each (100 % = mean)")
	for i := range dots {
		for _, at := range dots[i] {
			f.Dot(at, fmt.Sprintf(`fill="%s"`, plot.Colour(i)))
		}
	}
}

// WritePlot writes the runs to a file atomically, as SVG, or fails with [ErrPlot].
func WritePlot(path string, runs ...Report) error {
	if strings.ToLower(filepath.Ext(path)) != ".svg" {
		return fmt.Errorf("%w: %q: end it in .svg", ErrPlot, path)
	}
	var b bytes.Buffer
	if err := WriteSVG(&b, runs...); err != nil {
		return err
	}
	if err := WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrPlot, err)
	}
	return nil
}

// WriteFile replaces a world-readable file atomically and makes its directory.
func WriteFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".report-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
