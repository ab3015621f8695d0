// Package plot draws panels with axes, lines, dots and bars into one SVG picture.
package plot

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Palette is Okabe and Ito's for the colour-blind, extended; the first is for the main line.
var Palette = []string{
	"#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5230", "#808080", "#6a3d9a", "#1b1b1b", "#6ba532", "#fb9a99",
}

// Colour is the i-th of the palette, which repeats.
func Colour(i int) string { return Palette[i%len(Palette)] }

// Picture collects elements in its own units from its upper left corner.
type Picture struct {
	width, height float64
	body          strings.Builder
}

func New(width, height float64) *Picture { return &Picture{width: width, height: height} }

// SVG is the picture as a file or a part of a page.
func (p *Picture) SVG() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" viewBox="0 0 %.0f %.0f" font-family="system-ui,'Liberation Sans',Arial,sans-serif" font-size="11" role="img">`+"\n%s</svg>\n",
		p.width, p.height, p.body.String())
}

// Text writes s at a point of its base line; style has further attributes.
func (p *Picture) Text(x, y float64, style, s string) {
	fmt.Fprintf(&p.body, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, style, html.EscapeString(s))
}

// Box draws a rectangle with an optional tooltip.
func (p *Picture) Box(x, y, w, h float64, style, title string) {
	if title != "" {
		title = "<title>" + html.EscapeString(title) + "</title>"
	}
	fmt.Fprintf(&p.body, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" %s>%s</rect>`+"\n", x, y, w, h, style, title)
}

func (p *Picture) Rule(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(&p.body, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
}

// Axis maps values to a side of a panel; it clips values outside.
type Axis struct {
	Lo, Hi float64
	Log    bool // requires a positive Lo
	Ticks  []Tick
}

type Tick struct {
	At    float64
	Label string
}

func (a Axis) share(v float64) float64 {
	v = min(max(v, a.Lo), a.Hi)
	if a.Log {
		return math.Log(v/a.Lo) / math.Log(a.Hi/a.Lo)
	}
	return (v - a.Lo) / (a.Hi - a.Lo)
}

// Even gives a linear axis about count ticks at round values.
func Even(lo, hi float64, count int) Axis {
	a := Axis{Lo: lo, Hi: hi}
	rough := (hi - lo) / float64(count)
	step := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, k := range []float64{5, 2} {
		if step*k <= rough {
			step *= k
			break
		}
	}
	for v := math.Ceil(lo/step) * step; v <= hi*(1+1e-9); v += step {
		a.Ticks = append(a.Ticks, Tick{v, fmt.Sprintf("%.6g", v)})
	}
	return a
}

// Decades gives a logarithmic axis ticks at each power of ten times each factor.
func Decades(lo, hi float64, label func(float64) string, factors ...float64) Axis {
	a := Axis{Lo: lo, Hi: hi, Log: true}
	for d := math.Pow(10, math.Floor(math.Log10(lo))); d <= hi*(1+1e-9); d *= 10 {
		for _, k := range factors {
			if v := d * k; v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
				a.Ticks = append(a.Ticks, Tick{v, label(v)})
			}
		}
	}
	return a
}

// Panel is a rectangle of a picture with two axes.
type Panel struct {
	*Picture
	Left, Top, Width, Height float64
	Across, Up               Axis
	Bare                     bool // without labels of the upward axis
}

// Frame draws border, tick lines, labels, and a title above.
func (p Panel) Frame(title string) {
	for _, t := range p.Up.Ticks {
		p.Level(t.At, `stroke="#e0e0e0"`)
		if !p.Bare {
			p.Text(p.Left-5, p.y(t.At)+4, `text-anchor="end" fill="#444" font-size="10"`, t.Label)
		}
	}
	p.Box(p.Left, p.Top, p.Width, p.Height, `fill="none" stroke="#bbb"`, "")
	for _, t := range p.Across.Ticks {
		p.Text(p.x(t.At), p.Top+p.Height+13, `text-anchor="middle" fill="#444" font-size="10"`, t.Label)
	}
	if title != "" {
		p.Text(p.Left, p.Top-6, `font-weight="600"`, title)
	}
}

func (p Panel) x(v float64) float64 { return p.Left + p.Width*p.Across.share(v) }
func (p Panel) y(v float64) float64 { return p.Top + p.Height*(1-p.Up.share(v)) }

type Point struct{ X, Y float64 }

// Line joins points; a NaN Y leaves a gap.
func (p Panel) Line(points []Point, style string) {
	var run []string
	flush := func() {
		if len(run) > 0 {
			fmt.Fprintf(&p.body, `<polyline fill="none" stroke-linejoin="round" %s points="%s"/>`+"\n", style, strings.Join(run, " "))
		}
		run = nil
	}
	for _, at := range points {
		if math.IsNaN(at.Y) {
			flush()
			continue
		}
		run = append(run, fmt.Sprintf("%.1f,%.1f", p.x(at.X), p.y(at.Y)))
	}
	flush()
}

func (p Panel) Level(v float64, style string) {
	p.Rule(p.Left, p.y(v), p.Left+p.Width, p.y(v), style)
}

func (p Panel) Dot(at Point, style string) {
	fmt.Fprintf(&p.body, `<circle cx="%.1f" cy="%.1f" r="2" %s/>`+"\n", p.x(at.X), p.y(at.Y), style)
}
