package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"grapevine/chaos/fleetsim"
)

// Sizes of the picture in pixels.
const (
	panelW, panelH = 158, 128
	gapX, gapY     = 12, 30
	groupGap       = 22
	leftW, topH    = 58, 86
	legendH        = 44
)

// colours are Okabe and Ito's, told apart by the colour-blind, and more for a longer list; the first is for the policy judged.
var colours = []string{
	"#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5230", "#808080", "#6a3d9a", "#1b1b1b", "#6ba532", "#fb9a99",
}

// metric is one row of panels for each trace.
type metric struct {
	name string
	of   func(score) float64
	log  bool
}

var metrics = []metric{
	{"p99 of the first token, s", func(s score) float64 { return s.p99 / 1000 }, true},
	{"hit rate, %", func(s score) float64 { return 100 * s.hit }, false},
}

// picture draws small multiples: a row for each trace and metric, a column for each share and number of nodes, and in each
// panel a line for each policy over the delay. The dashed line is the judged policy with one node.
type picture struct {
	*summary
	strings.Builder
	shares []string
	nodes  []int
}

func (s *summary) svg() string {
	p := &picture{summary: s}
	for _, share := range shares {
		if share != fleetsim.ShareNone {
			p.shares = append(p.shares, string(share))
		}
	}
	for _, n := range s.options.nodes {
		if n > 1 {
			p.nodes = append(p.nodes, n)
		}
	}
	columns := len(p.shares) * len(p.nodes)
	width := max(leftW+columns*(panelW+gapX)+(len(p.shares)-1)*groupGap, p.legendWidth()) + 10
	height := topH + len(scenes)*len(metrics)*(panelH+gapY) + 24*len(scenes) + 6
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,'Liberation Sans',Arial,sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(p, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	p.legend()
	for i, share := range p.shares {
		x := p.x(i * len(p.nodes))
		p.text(x, topH-22, "start", 13, "#1b1b1b", "nodes share "+map[string]string{"both": "placements and load", "prefix": "placements only", "load": "load only"}[share])
		for j, n := range p.nodes {
			p.text(p.x(i*len(p.nodes)+j)+panelW/2, topH-6, "middle", 11, "#444", fmt.Sprintf("%d nodes", n))
		}
	}
	y := topH
	for _, sc := range scenes {
		p.text(leftW, y+14, "start", 12, "#1b1b1b", fmt.Sprintf("%s at speed %g", sc.name, sc.speed))
		y += 24
		for _, m := range metrics {
			p.row(sc, m, y)
			y += panelH + gapY
		}
	}
	p.WriteString("</svg>\n")
	return p.String()
}

// x is the left edge of a column.
func (p *picture) x(column int) int {
	return leftW + column*(panelW+gapX) + column/max(1, len(p.nodes))*groupGap
}

// legendWidth is where the legend ends.
func (p *picture) legendWidth() int {
	x := leftW
	for _, name := range p.policies {
		x += legendStep(name)
	}
	return x
}

func legendStep(name string) int { return 44 + 7*len(name) }

func (p *picture) legend() {
	x := leftW
	for i, name := range p.policies {
		w := 3.0
		if i > 0 {
			w = 1.5
		}
		fmt.Fprintf(p, `<line x1="%d" y1="22" x2="%d" y2="22" stroke="%s" stroke-width="%g"/>`+"\n", x, x+22, colours[i%len(colours)], w)
		p.text(x+27, 26, "start", 12, "#1b1b1b", name)
		x += legendStep(name)
	}
	p.text(leftW, legendH, "start", 11, "#555", fmt.Sprintf("Across each panel: the delay in seconds after which nodes hear of each other. Dashed: %s with one node. Best: low in the first row of a trace, high in the second.", p.policies[0]))
}

func (p *picture) text(x, y int, anchor string, size int, colour, s string) {
	fmt.Fprintf(p, `<text x="%d" y="%d" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", x, y, anchor, size, colour, s)
}

// axis maps values to heights within a row of panels.
type axis struct {
	lo, hi float64
	log    bool
	top    int
}

func (a axis) y(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(v)
	}
	v = min(max(v, lo), hi)
	return float64(a.top) + panelH*(1-(v-lo)/(hi-lo))
}

func (p *picture) row(sc scene, m metric, top int) {
	a := p.scale(sc, m, top)
	for i, share := range p.shares {
		for j, n := range p.nodes {
			column := i*len(p.nodes) + j
			p.panel(sc, m, a, share, n, p.x(column), column == 0)
		}
	}
	fmt.Fprintf(p, `<text transform="translate(%d %d) rotate(-90)" text-anchor="middle" fill="#444">%s</text>`+"\n", 14, top+panelH/2, m.name)
}

// scale takes in all that the policies of interest reach; what lies far outside is cut off at the edge.
func (p *picture) scale(sc scene, m metric, top int) axis {
	var all []float64
	for i := range p.points {
		if p.points[i].Scene != sc.name {
			continue
		}
		for _, s := range p.points[i].scores {
			all = append(all, m.of(s))
		}
	}
	if len(all) == 0 {
		return axis{1, 2, m.log, top}
	}
	slices.Sort(all)
	if m.log {
		return axis{all[0] / 1.15, max(all[len(all)*97/100]*1.1, all[0]*2), true, top}
	}
	return axis{0, all[len(all)-1] * 1.08, false, top}
}

func (a axis) ticks() []float64 {
	var out []float64
	if a.log {
		for d := math.Pow(10, math.Floor(math.Log10(a.lo))); d <= a.hi; d *= 10 {
			for _, k := range []float64{1, 2, 5} {
				if v := d * k; v >= a.lo && v <= a.hi {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := 10.0
	if a.hi > 60 {
		step = 20
	}
	for v := 0.0; v <= a.hi; v += step {
		out = append(out, v)
	}
	return out
}

func (p *picture) panel(sc scene, m metric, a axis, share string, nodes, x int, labelled bool) {
	fmt.Fprintf(p, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#bbb"/>`+"\n", x, a.top, panelW, panelH)
	for _, v := range a.ticks() {
		fmt.Fprintf(p, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e4e4e4"/>`+"\n", x, a.y(v), x+panelW, a.y(v))
		if labelled {
			p.text(x-5, int(a.y(v))+4, "end", 10, "#444", fmt.Sprintf("%g", v))
		}
	}
	if one := p.at(place{sc.name, 1, "none", -1}); one != nil {
		v := a.y(m.of(one.judged))
		fmt.Fprintf(p, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-dasharray="5 4"/>`+"\n", x, v, x+panelW, v, colours[0])
	}
	step := float64(panelW-24) / float64(len(delays)-1)
	lines := make([][]string, len(p.policies))
	for i, d := range delays {
		at := place{sc.name, nodes, share, d.Seconds()}.plain()
		label := strings.TrimSuffix(fmt.Sprintf("%g", d.Seconds()), " ")
		if d == fleetsim.Never {
			at, label = place{sc.name, nodes, "none", -1}, "none"
		}
		px := float64(x) + 12 + float64(i)*step
		p.text(int(px), a.top+panelH+12, "middle", 9, "#444", label)
		pt := p.at(at)
		if pt == nil {
			continue
		}
		for k, s := range pt.scores {
			lines[k] = append(lines[k], fmt.Sprintf("%.1f,%.1f", px, a.y(m.of(s))))
		}
	}
	for k := len(lines) - 1; k >= 0; k-- { // the judged one last, on top
		w := 1.3
		if k == 0 {
			w = 3
		}
		fmt.Fprintf(p, `<polyline fill="none" stroke="%s" stroke-width="%g" stroke-linejoin="round" points="%s"/>`+"\n", colours[k%len(colours)], w, strings.Join(lines[k], " "))
	}
}

func (p *picture) at(pl place) *point {
	for i := range p.points {
		if p.points[i].place == pl {
			return &p.points[i]
		}
	}
	return nil
}
