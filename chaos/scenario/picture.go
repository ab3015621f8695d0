package scenario

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Sizes of the picture, in its own units.
const (
	pictureWidth = 1100.0
	panelHeight  = 150.0
	panelGap     = 34.0
	leftMargin   = 84.0
	rightMargin  = 12.0
	markHeight   = 15.0 // of the row of an event above the panels
)

// chart draws the panels of one run, each second a point, below bars that show when something was done.
type chart struct {
	strings.Builder
	r      *Report
	length float64 // seconds
	width  float64 // of a slice, seconds
	top    float64 // of the first panel
}

// picture is the course of a run: what was done when, hits, requests and failures, and the time to the first token.
func picture(r *Report) template.HTML {
	if len(r.Timeline) == 0 {
		return ""
	}
	rows := lanes(r.Events)
	c := &chart{r: r, width: max(r.SliceS, 1), top: markHeight*float64(len(rows)) + 24}
	c.length = float64(len(r.Timeline)) * c.width
	height := c.top + 3*(panelHeight+panelGap)
	fmt.Fprintf(c, `<svg viewBox="0 0 %.0f %.0f" font-family="system-ui, sans-serif" font-size="11" role="img">`, pictureWidth, height)
	c.events(rows, height-panelGap)
	c.panel(0, "hit rate of later turns, % of what was possible", 0, 100, func(v float64) float64 { return v }, "",
		line{"#0072b2", func(s *Slice) *float64 { return times(s.Hit, 100) }, ""})
	span := "a second"
	if c.width > 1 {
		span = fmt.Sprintf("%.0f seconds", c.width)
	}
	most := 1.0
	for i := range r.Timeline {
		most = max(most, float64(r.Timeline[i].Sent))
	}
	c.panel(1, "requests sent (grey) and failed attempts (red) in "+span, 0, math.Ceil(most/10)*10, func(v float64) float64 { return v }, "",
		line{"#999", func(s *Slice) *float64 { v := float64(s.Sent); return &v }, ""}, line{"#d00000", func(s *Slice) *float64 { v := float64(s.Broken); return &v }, ""})
	c.panel(2, "time to first token, median and 99th percentile, ms (log scale)", 0, 4, math.Log10, "log",
		line{"#009e73", func(s *Slice) *float64 { return s.TTFT50 }, ""}, line{"#d55e00", func(s *Slice) *float64 { return s.TTFT99 }, "5 3"})
	c.WriteString("</svg>")
	return template.HTML(c.String()) //nolint:gosec // drawn here; texts are escaped
}

func times(v *float64, by float64) *float64 {
	if v == nil {
		return nil
	}
	x := *v * by
	return &x
}

func (c *chart) x(s float64) float64 {
	return leftMargin + (pictureWidth-leftMargin-rightMargin)*s/c.length
}

// maxRows is how many events have a row each; of more, those of one kind share one.
const maxRows = 30

// lane is a row above the panels.
type lane struct {
	label  string
	events []Happened
}

func lanes(events []Happened) (out []lane) {
	if len(events) <= maxRows {
		for _, e := range events {
			out = append(out, lane{e.Event, []Happened{e}})
		}
		return out
	}
	for _, e := range events {
		kind := e.Event
		if words := strings.Fields(kind); len(words) > 1 { // after its time
			kind = words[1]
		}
		i := slices.IndexFunc(out, func(l lane) bool { return l.label == kind })
		if i < 0 {
			i = len(out)
			out = append(out, lane{label: kind})
		}
		out[i].events = append(out[i].events, e)
	}
	return out
}

// events draws the rows, and the shadow of each event over all panels.
func (c *chart) events(rows []lane, bottom float64) {
	shadow := 0.10
	if len(c.r.Events) > maxRows {
		shadow = 0.03 // there are always some
	}
	for i, l := range rows {
		y := markHeight * float64(i)
		for _, e := range l.events {
			over := c.length
			if e.OverS != nil {
				over = *e.OverS
			}
			from, to := c.x(e.BeganS), c.x(max(over, e.BeganS+0.1))
			fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#d55e00" opacity="%.2f"/>`, from, y, to-from, bottom-y, shadow)
			fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#d55e00" opacity="0.55"><title>%s</title></rect>`,
				from, y+2, max(to-from, 0.5), markHeight-4, template.HTMLEscapeString(e.Event))
			if len(l.events) > 1 || len(rows) < len(c.r.Events) {
				continue
			}
			anchor, at := "start", to+4
			if at > pictureWidth*0.7 {
				anchor, at = "end", from-4
			}
			fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, at, y+markHeight-4, anchor, template.HTMLEscapeString(e.Event))
		}
		if len(rows) < len(c.r.Events) {
			fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, leftMargin-6, y+markHeight-4, template.HTMLEscapeString(l.label))
		}
	}
}

// line is one figure of the slices; nil leaves a gap.
type line struct {
	color string
	pick  func(*Slice) *float64
	dash  string
}

// panel draws the n-th panel; lo and hi are in the units that scale gives.
func (c *chart) panel(n int, title string, lo, hi float64, scale func(float64) float64, kind string, lines ...line) {
	top := c.top + float64(n)*(panelHeight+panelGap)
	y := func(v float64) float64 { return top + panelHeight - panelHeight*min(max((v-lo)/(hi-lo), 0), 1) }
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" font-weight="600">%s</text>`, leftMargin, top-6, template.HTMLEscapeString(title))
	for i := range 5 {
		v := lo + (hi-lo)*float64(i)/4
		label := fmt.Sprintf("%.4g", v)
		if kind == "log" {
			label = fmt.Sprintf("%.4g", math.Pow(10, v))
		}
		fmt.Fprintf(c, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`,
			leftMargin, pictureWidth-rightMargin, y(v), y(v), leftMargin-6, y(v)+4, label)
	}
	step := math.Max(5, math.Ceil(c.length/100)*5)
	for s := 0.0; s <= c.length; s += step {
		fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#555">%.0f s</text>`, c.x(s), top+panelHeight+14, s)
	}
	for _, l := range lines {
		var points strings.Builder
		flush := func() {
			if points.Len() > 0 {
				fmt.Fprintf(c, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-dasharray="%s"/>`, points.String(), l.color, l.dash)
			}
			points.Reset()
		}
		for i := range c.r.Timeline {
			v := l.pick(&c.r.Timeline[i])
			if v == nil {
				flush()
				continue
			}
			fmt.Fprintf(&points, "%.1f,%.1f ", c.x(c.r.Timeline[i].FromS+c.width/2), y(scale(math.Max(*v, 1e-9))))
		}
		flush()
	}
}
