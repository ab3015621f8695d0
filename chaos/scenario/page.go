package scenario

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"grapevine.example/chaos/plot"
	"grapevine.example/chaos/report"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("chaos").Funcs(template.FuncMap{"picture": picture, "cell": cell}).Parse(pageText))

func cell(word any) string {
	switch word {
	case Held, Passed:
		return "held"
	case Violated, Failed:
		return "violated"
	}
	return "idle"
}

// WriteHTML writes verdicts and timelines atomically as one self-contained page, and makes its
// directory.
func WriteHTML(path string, runs ...*Report) error {
	var b bytes.Buffer
	if err := page.Execute(&b, runs); err != nil {
		return err
	}
	if err := report.WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

const (
	pictureWidth = 1100.0
	panelHeight  = 150.0
	panelGap     = 34.0
	leftMargin   = 84.0
	rightMargin  = 12.0
	markHeight   = 15.0 // of the row of an event above the panels
)

type chart struct {
	*plot.Picture
	r      *Report
	length float64
	width  float64
	top    float64
}

func picture(r *Report) template.HTML {
	if len(r.Timeline) == 0 {
		return ""
	}
	rows := lanes(r.Events)
	c := &chart{r: r, width: max(r.SliceS, 1), top: markHeight*float64(len(rows)) + 24}
	c.length = float64(len(r.Timeline)) * c.width
	height := c.top + 3*(panelHeight+panelGap)
	c.Picture = plot.New(pictureWidth, height)
	c.events(rows, height-panelGap)
	c.panel(0, "hit rate of later turns, % of what was possible", plot.Even(0, 100, 4),
		line{"#0072b2", "", func(s *Slice) float64 { return 100 * orGap(s.Hit) }})
	span := "a second"
	if c.width > 1 {
		span = fmt.Sprintf("%.0f seconds", c.width)
	}
	most := 1.0
	for i := range r.Timeline {
		most = max(most, float64(r.Timeline[i].Sent))
	}
	c.panel(1, "requests sent (grey) and failed attempts (red) in "+span, plot.Even(0, math.Ceil(most/10)*10, 4),
		line{"#999", "", func(s *Slice) float64 { return float64(s.Sent) }}, line{"#d00000", "", func(s *Slice) float64 { return float64(s.Broken) }})
	number := func(v float64) string { return fmt.Sprintf("%g", v) }
	c.panel(2, "time to first token, median and 99th percentile, ms (log scale)", plot.Decades(1, 1e4, number, 1),
		line{"#009e73", "", func(s *Slice) float64 { return orGap(s.TTFT50) }}, line{"#d55e00", "5 3", func(s *Slice) float64 { return orGap(s.TTFT99) }})
	return template.HTML(c.SVG()) //nolint:gosec // drawn here; texts are escaped
}

// orGap makes a gap in a line where there is no value.
func orGap(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func (c *chart) x(s float64) float64 {
	return leftMargin + (pictureWidth-leftMargin-rightMargin)*s/c.length
}

// Beyond maxRows events, those of one kind share a row.
const maxRows = 30

type lane struct {
	label  string
	events []Happened
}

func lanes(events []Happened) (out []lane) {
	for _, e := range events {
		i, label := -1, e.Event
		if len(events) > maxRows {
			label = strings.Fields(label)[1] // the fault
			i = slices.IndexFunc(out, func(l lane) bool { return l.label == label })
		}
		if i < 0 {
			i = len(out)
			out = append(out, lane{label: label})
		}
		out[i].events = append(out[i].events, e)
	}
	return out
}

func (c *chart) events(rows []lane, bottom float64) {
	shadow := 0.10
	if len(c.r.Events) > maxRows {
		shadow = 0.03
	}
	for i, l := range rows {
		y := markHeight * float64(i)
		for _, e := range l.events {
			over := c.length
			if e.OverS != nil {
				over = *e.OverS
			}
			from, to := c.x(e.BeganS), c.x(max(over, e.BeganS+0.1))
			c.Box(from, y, to-from, bottom-y, fmt.Sprintf(`fill="#d55e00" opacity="%.2f"`, shadow), "")
			c.Box(from, y+2, max(to-from, 0.5), markHeight-4, `fill="#d55e00" opacity="0.55"`, e.Event)
			if len(l.events) > 1 || len(rows) < len(c.r.Events) {
				continue
			}
			anchor, at := "start", to+4
			if at > pictureWidth*0.7 {
				anchor, at = "end", from-4
			}
			c.Text(at, y+markHeight-4, fmt.Sprintf(`text-anchor="%s"`, anchor), e.Event)
		}
		if len(rows) < len(c.r.Events) {
			c.Text(leftMargin-6, y+markHeight-4, `text-anchor="end"`, l.label)
		}
	}
}

type line struct {
	colour, dash string
	pick         func(*Slice) float64
}

func (c *chart) panel(n int, title string, up plot.Axis, lines ...line) {
	f := plot.Panel{
		Picture: c.Picture, Left: leftMargin, Top: c.top + float64(n)*(panelHeight+panelGap), Width: pictureWidth - leftMargin - rightMargin, Height: panelHeight,
		Across: plot.Even(0, c.length, 8), Up: up,
	}
	for i := range f.Across.Ticks {
		f.Across.Ticks[i].Label += " s"
	}
	f.Frame(title)
	for _, l := range lines {
		var points []plot.Point
		for i := range c.r.Timeline {
			s := &c.r.Timeline[i]
			points = append(points, plot.Point{X: s.FromS + c.width/2, Y: l.pick(s)})
		}
		f.Line(points, fmt.Sprintf(`stroke="%s" stroke-width="1.6" stroke-dasharray="%s"`, l.colour, l.dash))
	}
}
