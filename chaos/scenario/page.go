package scenario

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"grapevine/chaos/plot"
	"grapevine/chaos/report"
)

var page = template.Must(template.New("chaos").Funcs(template.FuncMap{"picture": picture, "cell": cell}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>grapevine-lab chaos</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; background: #fff }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; width: 100% }
th, td { padding: .25rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #888 }
pre { background: #f5f5f5; padding: .6rem; overflow: auto; max-height: 20rem; font-size: 12px }
svg { width: 100%; min-width: 46rem; height: auto } .wide { overflow-x: auto }
.held, .passed { color: #00704d } .violated, .failed { color: #b02a00; font-weight: 600 } .idle { color: #777 }
.note { color: #555; font-size: 13px }
td { overflow-wrap: anywhere } td.word { overflow-wrap: normal }
@media (max-width: 40rem) {
 body { margin: 1rem auto } th { display: none } tr { display: block; border-bottom: 1px solid #ddd; padding: .3rem 0 }
 td { display: inline-block; border: 0; padding: .1rem .6rem .1rem 0 } td:last-child { display: block }
}
</style>
<h1>grapevine-lab chaos</h1>
<table><tr><th>scenario</th><th>result</th><th>seed</th><th>requests</th><th>violations</th><th>what it is to show</th></tr>
{{range .}}<tr><td class="word"><a href="#{{.Scenario}}-{{.Seed}}">{{.Scenario}}</a></td><td class="word {{cell .Result}}">{{.Result}}</td><td>{{.Seed}}</td><td>{{.Requests}}</td><td>{{.Violations}}</td><td>{{.Proves}}</td></tr>
{{end}}</table>
{{range .}}<h2 id="{{.Scenario}}-{{.Seed}}">{{.Scenario}}: <span class="{{cell .Result}}">{{.Result}}</span></h2>
<p>{{.Proves}}. {{.Nodes}} routers, {{.Engines}} engines, {{.DurationS}} s of traffic, {{.Requests}} requests in {{.Attempts}} attempts: {{range $o, $n := .Outcomes}}{{$n}} {{$o}} {{end}}{{with .Harness.PeakMiB}}(the harness took {{printf "%.0f" .}} MiB at most){{end}}</p>
{{range .Missing}}<p class="idle">{{.}}</p>
{{end}}<pre>{{.Command}}
{{range .Schedule}}{{.}}
{{end}}</pre>
<div class="wide">{{picture .}}</div>
<table><tr><th>promise</th><th>state</th><th>checked</th><th></th></tr>
{{range .Verdicts}}<tr><td class="word">{{.Name}}</td><td class="word {{cell .State}}">{{.State}}</td><td>{{.Checked}}</td><td>{{.Promise}} <span class="note">(within: {{.Bound}}; seen by: {{.Seen}})</span>{{with .Note}}<br>{{.}}{{end}}
{{range .Violations}}<br><span class="violated">{{.At}}, {{.Place}}: {{.Evidence}}</span>{{end}}</td></tr>
{{end}}</table>
{{end}}</html>
`))

func cell(word any) string {
	switch word {
	case Held, Passed:
		return "held"
	case Violated, Failed:
		return "violated"
	}
	return "idle"
}

// WriteHTML writes verdicts and timelines of runs as one self-contained page. The file is written
// atomically.
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

// Sizes of the picture, in its own units.
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
		line{"#0072b2", "", func(s *Slice) *float64 { return times(s.Hit, 100) }})
	span := "a second"
	if c.width > 1 {
		span = fmt.Sprintf("%.0f seconds", c.width)
	}
	most := 1.0
	for i := range r.Timeline {
		most = max(most, float64(r.Timeline[i].Sent))
	}
	c.panel(1, "requests sent (grey) and failed attempts (red) in "+span, plot.Even(0, math.Ceil(most/10)*10, 4),
		line{"#999", "", func(s *Slice) *float64 { v := float64(s.Sent); return &v }}, line{"#d00000", "", func(s *Slice) *float64 { v := float64(s.Broken); return &v }})
	number := func(v float64) string { return fmt.Sprintf("%g", v) }
	c.panel(2, "time to first token, median and 99th percentile, ms (log scale)", plot.Decades(1, 1e4, number, 1),
		line{"#009e73", "", func(s *Slice) *float64 { return s.TTFT50 }}, line{"#d55e00", "5 3", func(s *Slice) *float64 { return s.TTFT99 }})
	return template.HTML(c.SVG()) //nolint:gosec // drawn here; texts are escaped
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

// maxRows bounds the rows of single events; beyond it, events of one kind share a row.
const maxRows = 30

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
		if words := strings.Fields(kind); len(words) > 1 {
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
	pick         func(*Slice) *float64
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
			at := plot.Point{X: c.r.Timeline[i].FromS + c.width/2, Y: math.NaN()}
			if v := l.pick(&c.r.Timeline[i]); v != nil {
				at.Y = *v
			}
			points = append(points, at)
		}
		f.Line(points, fmt.Sprintf(`stroke="%s" stroke-width="1.6" stroke-dasharray="%s"`, l.colour, l.dash))
	}
}
