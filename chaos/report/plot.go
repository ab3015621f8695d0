package report

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// ErrPlot is wrapped by every error of drawing.
var ErrPlot = errors.New("plot")

// Sizes of the picture, in points of 1/72 inch.
const (
	plotWidth   = 960
	panelHeight = 230
	titleHeight = 40
	legendWidth = 130
	// maxBarred is the number of bars up to which load is drawn engine by engine.
	maxBarred = 64
)

// palette is Okabe and Ito's, told apart by the colour-blind, and greys and
// browns for a longer list. The first is for the policy that matters most.
var palette = []color.RGBA{
	{0xd5, 0x5e, 0x00, 255}, {0x00, 0x72, 0xb2, 255}, {0x00, 0x9e, 0x73, 255}, {0xcc, 0x79, 0xa7, 255},
	{0xe6, 0x9f, 0x00, 255}, {0x56, 0xb4, 0xe9, 255}, {0x7a, 0x52, 0x30, 255}, {0x80, 0x80, 0x80, 255},
	{0x6a, 0x3d, 0x9a, 255}, {0x1b, 0x1b, 0x1b, 255}, {0x6b, 0xa5, 0x32, 255}, {0xfb, 0x9a, 0x99, 255},
}

// dashes tell the lines apart beyond the palette and in print.
var dashes = [][]vg.Length{nil, {6, 2}, {2, 2}, {8, 2, 2, 2}}

// WriteSVG draws the runs: hit rate, median and 99th percentile of the first
// token's time over the course of the run, and how the requests fell on the
// engines. It fails with [ErrPlot] if there is nothing to draw.
func WriteSVG(w io.Writer, runs ...Report) error {
	if len(runs) == 0 {
		return fmt.Errorf("%w: no runs", ErrPlot)
	}
	for i := range runs {
		if len(runs[i].Series) == 0 {
			return fmt.Errorf("%w: the run of %s has no requests", ErrPlot, name(runs, i))
		}
	}
	panels, err := drawPanels(runs)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPlot, err)
	}
	height := vg.Length(titleHeight + panelHeight*len(panels))
	canvas := vgsvg.New(plotWidth, height)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())

	style := panels[0].plot.Title.TextStyle
	style.Font.Size = 15
	all.FillText(style, vg.Point{X: plotWidth / 2, Y: height - 7}, title(runs))
	stack(panels, draw.Crop(all, 8, -legendWidth-12, 4, -titleHeight))
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font = sans(legend.TextStyle.Font, 11)
	legend.ThumbnailWidth, legend.Padding = 22, 3
	for i := range runs {
		legend.Add(name(runs, i), panels[0].lines[i])
	}
	legend.Draw(draw.Crop(all, plotWidth-legendWidth, 0, 0, -titleHeight-20))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return fmt.Errorf("%w: %w", ErrPlot, err)
	}
	// The text is laid out by the metrics of Liberation Sans, which Arial and
	// Helvetica share; name them for machines that lack it.
	out := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"))
	_, err = w.Write(out)
	return err
}

// stack draws the panels below each other, their axes aligned.
func stack(panels []panel, c draw.Canvas) {
	step := (c.Max.Y - c.Min.Y) / vg.Length(len(panels))
	cell := func(i int) draw.Canvas {
		cell := c
		cell.Max.Y = c.Max.Y - vg.Length(i)*step
		cell.Min.Y = cell.Max.Y - step + 12
		return cell
	}
	var left, right vg.Length // of the axis within a cell, at most
	for i, p := range panels {
		data := p.plot.DataCanvas(cell(i))
		left, right = max(left, data.Min.X-c.Min.X), max(right, c.Max.X-data.Max.X)
	}
	for i, p := range panels {
		data := p.plot.DataCanvas(cell(i))
		p.plot.Draw(draw.Crop(cell(i), left-(data.Min.X-c.Min.X), (c.Max.X-data.Max.X)-right, 0, 0))
	}
}

// sans returns the font in the sans-serif variant.
func sans(f font.Font, size font.Length) font.Font {
	f.Variant, f.Size = "Sans", size
	return f
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

// name is what the legend calls a run.
func name(runs []Report, i int) string {
	r := &runs[i]
	if r.Label != "" {
		return r.Label
	}
	out := r.Policy
	var nodes, share, staleness bool // differ between the runs
	for j := range runs {
		nodes = nodes || runs[j].Nodes != r.Nodes
		share = share || runs[j].share() != r.share()
		staleness = staleness || runs[j].staleness() != r.staleness()
	}
	if nodes {
		out += fmt.Sprintf(", %d nodes", r.Nodes)
	}
	if share {
		out += ", " + r.share()
	}
	if staleness {
		out += ", " + r.staleness()
	}
	return out
}

// panel is one of the picture's rows.
type panel struct {
	plot  *plot.Plot
	lines []*plotter.Line // of each run, for the legend; nil if none are drawn
}

func drawPanels(runs []Report) ([]panel, error) {
	hit, err := course(runs, "cached / prompt tokens (%)", func(b *Bucket) float64 { return 100 * b.HitRate })
	if err != nil {
		return nil, err
	}
	hit.plot.Title.Text = "Hit rate"
	hit.plot.Y.Min, hit.plot.Y.Max = 0, 100
	panels := []panel{hit}
	for _, q := range []struct {
		title string
		pick  func(*Bucket) float64
	}{
		{"Time to first token, median (log scale)", func(b *Bucket) float64 { return b.TTFT.P50 / 1000 }},
		{"Time to first token, 99th percentile (log scale)", func(b *Bucket) float64 { return b.TTFT.P99 / 1000 }},
	} {
		// No label: gonum makes room for one on a log axis where it does not stand.
		p, err := course(runs, "", q.pick)
		if err != nil {
			return nil, err
		}
		p.plot.Title.Text = q.title
		logarithmic(p)
		panels = append(panels, p)
	}
	load, err := loads(runs)
	if err != nil {
		return nil, err
	}
	return append(panels, panel{plot: load}), nil
}

// newPlot returns an empty plot in the common dress.
func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.TextStyle.Font = sans(p.Title.TextStyle.Font, 12)
	p.Title.Padding = 6
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font = sans(a.Label.TextStyle.Font, 10)
		a.Tick.Label.Font = sans(a.Tick.Label.Font, 9)
		a.Label.Padding = 3
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{0xee}
	grid.Horizontal.Color = color.Gray{0xdd}
	p.Add(grid)
	return p
}

func shade(i int) color.Color { return palette[i%len(palette)] }

// course draws one figure of each run over time. Slices without requests leave
// out their point.
func course(runs []Report, label string, pick func(*Bucket) float64) (panel, error) {
	out := panel{plot: newPlot()}
	end := 0.0
	for i := range runs {
		end = max(end, runs[i].Series[len(runs[i].Series)-1].To)
	}
	unit, scale := "s", 1.0
	if end > 1200 {
		unit, scale = "min", 60
	}
	out.plot.X.Label.Text = "time of arrival (" + unit + ")"
	out.plot.Y.Label.Text = label
	for i := range runs {
		var xy plotter.XYs
		for j := range runs[i].Series {
			b := &runs[i].Series[j]
			if b.Requests > 0 {
				xy = append(xy, plotter.XY{X: (b.From + b.To) / 2 / scale, Y: pick(b)})
			}
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return out, err
		}
		line.Color = shade(i)
		line.Width = 1.4
		line.Dashes = dashes[i/4%len(dashes)]
		out.lines = append(out.lines, line)
	}
	// The first run is the one looked for: draw it last, on top, and thicker.
	out.lines[0].Width = 2.4
	for i := len(out.lines) - 1; i >= 0; i-- {
		out.plot.Add(out.lines[i])
	}
	out.plot.X.Min, out.plot.X.Max = 0, end/scale
	return out, nil
}

// floor is the least time a logarithmic axis shows, in seconds.
const floor = 1e-3

// logarithmic gives the panel a log axis in whole decades of seconds.
func logarithmic(p panel) {
	lo, hi := math.Inf(1), floor*10
	for _, l := range p.lines {
		for i := range l.XYs {
			l.XYs[i].Y = max(l.XYs[i].Y, floor)
			lo, hi = min(lo, l.XYs[i].Y), max(hi, l.XYs[i].Y)
		}
	}
	p.plot.Y.Min = math.Pow(10, math.Floor(math.Log10(lo)+1e-9))
	p.plot.Y.Max = math.Pow(10, math.Ceil(math.Log10(hi)-1e-9))
	p.plot.Y.Scale = plot.LogScale{}
	p.plot.Y.Tick.Marker = plot.TickerFunc(func(lo, hi float64) []plot.Tick {
		var ticks []plot.Tick
		for d := math.Round(math.Log10(lo)); d <= math.Round(math.Log10(hi)); d++ {
			base := math.Pow(10, d)
			ticks = append(ticks, plot.Tick{Value: base, Label: seconds(base)})
			for k := 2.0; k < 10 && base*k < hi; k++ {
				ticks = append(ticks, plot.Tick{Value: base * k})
			}
		}
		return ticks
	})
}

func seconds(s float64) string {
	if s < 0.9 {
		return strconv.FormatFloat(s*1000, 'g', 3, 64) + " ms"
	}
	return strconv.FormatFloat(s, 'f', 0, 64) + " s"
}

// loads draws how many requests each engine got: engine by engine if that is
// few bars, else a column of dots for each run.
func loads(runs []Report) (*plot.Plot, error) {
	p := newPlot()
	n := 0
	for i := range runs {
		n += len(runs[i].Backends)
	}
	p.Title.Text = "Requests per engine"
	if n <= maxBarred {
		return p, bars(p, runs)
	}
	p.Y.Label.Text = "requests (100 % = mean)"
	p.Title.Text += ", one dot each"
	top := 150.0
	names := make([]string, len(runs))
	for i := range runs {
		names[i] = name(runs, i)
		bs := runs[i].Backends
		mean := float64(runs[i].Requests) / float64(max(1, len(bs)))
		xy := make(plotter.XYs, len(bs))
		for j, b := range bs {
			// Spread the dots a little, in order of the engines' ids.
			xy[j].X = float64(i) + 0.5*(float64(j)+0.5)/float64(len(bs)) - 0.25
			xy[j].Y = 100 * float64(b.Requests) / max(1, mean)
			top = max(top, xy[j].Y*1.08)
		}
		dots, err := plotter.NewScatter(xy)
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: shade(i), Radius: 2, Shape: draw.CircleGlyph{}}
		p.Add(dots)
	}
	p.NominalX(names...)
	p.X.Tick.Label.Font.Size = font.Length(min(9, 60/float64(len(runs))+3))
	p.X.Padding = 6
	p.Y.Min, p.Y.Max = 0, top
	p.X.Min, p.X.Max = -0.5, float64(len(runs))-0.5
	return p, nil
}

func bars(p *plot.Plot, runs []Report) error {
	p.X.Label.Text = "engine"
	p.Y.Label.Text = "requests"
	most := 0
	for i := range runs {
		most = max(most, len(runs[i].Backends))
	}
	width := vg.Length(0.7 * (plotWidth - legendWidth - 70) / float64(max(1, most)*len(runs)))
	for i := range runs {
		var v plotter.Values
		for _, b := range runs[i].Backends {
			v = append(v, float64(b.Requests))
		}
		if len(v) == 0 {
			continue
		}
		chart, err := plotter.NewBarChart(v, width)
		if err != nil {
			return err
		}
		chart.Color = shade(i)
		chart.LineStyle.Width = 0
		chart.Offset = width * vg.Length(float64(i)-float64(len(runs)-1)/2)
		p.Add(chart)
	}
	ids := make([]string, most)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	p.NominalX(ids...)
	p.X.Min, p.X.Max = -0.5, float64(most)-0.5
	p.Y.Min = 0
	p.Y.Max *= 1.05
	return nil
}
