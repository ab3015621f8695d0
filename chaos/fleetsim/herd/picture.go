package main

import (
	"fmt"
	"slices"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/plot"
)

// Sizes of the picture in pixels.
const (
	panelW, panelH = 158, 128
	gapX, gapY     = 12, 30
	groupGap       = 22
	leftW, topH    = 58, 86
	legendH        = 44
)

type metric struct {
	name string
	of   func(score) float64
	log  bool
}

var metrics = []metric{
	{"p99 of the first token, s", func(s score) float64 { return s.p99 / 1000 }, true},
	{"hit rate, %", func(s score) float64 { return 100 * s.hit }, false},
}

// picture draws small multiples: a row per trace and metric, a column per share and number of
// nodes, and in each panel a line per policy over the delay. The dashed line is the judged policy
// with one node.
type picture struct {
	*summary
	*plot.Picture
	shares []string
	nodes  []int
}

func (s *summary) svg() string {
	p := &picture{summary: s}
	for _, share := range s.grid.shares {
		if share != fleetsim.ShareNone {
			p.shares = append(p.shares, string(share))
		}
	}
	for _, n := range s.grid.nodes {
		if n > 1 {
			p.nodes = append(p.nodes, n)
		}
	}
	columns := len(p.shares) * len(p.nodes)
	width := max(float64(leftW+columns*(panelW+gapX)+(len(p.shares)-1)*groupGap), p.legendWidth()) + 10
	p.Picture = plot.New(width, float64(topH+len(s.scenes)*len(metrics)*(panelH+gapY)+24*len(s.scenes)+6))
	p.legend()
	for i, share := range p.shares {
		x := p.x(i * len(p.nodes))
		p.Text(x, topH-22, `font-size="13"`, "nodes share "+map[string]string{"both": "placements and load", "prefix": "placements only", "load": "load only"}[share])
		for j, n := range p.nodes {
			p.Text(p.x(i*len(p.nodes)+j)+panelW/2, topH-6, `text-anchor="middle" fill="#444"`, fmt.Sprintf("%d nodes", n))
		}
	}
	y := float64(topH)
	for _, sc := range s.scenes {
		p.Text(leftW, y+14, `font-size="12"`, fmt.Sprintf("%s at speed %g", sc.name, sc.speed))
		y += 24
		for _, m := range metrics {
			p.row(sc, m, y)
			y += panelH + gapY
		}
	}
	return p.SVG()
}

func (p *picture) x(column int) float64 {
	return float64(leftW + column*(panelW+gapX) + column/max(1, len(p.nodes))*groupGap)
}

func (p *picture) legendWidth() float64 {
	x := float64(leftW)
	for _, name := range p.policies {
		x += legendStep(name)
	}
	return x
}

func legendStep(name string) float64 { return float64(44 + 7*len(name)) }

func stroke(i int) string {
	width := 1.3
	if i == 0 {
		width = 3
	}
	return fmt.Sprintf(`stroke="%s" stroke-width="%g"`, plot.Colour(i), width)
}

func (p *picture) legend() {
	x := float64(leftW)
	for i, name := range p.policies {
		p.Rule(x, 22, x+22, 22, stroke(i))
		p.Text(x+27, 26, `font-size="12"`, name)
		x += legendStep(name)
	}
	p.Text(leftW, legendH, `fill="#555"`, fmt.Sprintf("Across each panel: the delay in seconds after which nodes hear of each other. Dashed: %s with one node. Best: low in the first row of a trace, high in the second.", p.policies[0]))
}

func (p *picture) row(sc scene, m metric, top float64) {
	up := p.scale(sc, m)
	for i, share := range p.shares {
		for j, n := range p.nodes {
			column := i*len(p.nodes) + j
			f := plot.Panel{Picture: p.Picture, Left: p.x(column), Top: top, Width: panelW, Height: panelH, Up: up, Bare: column > 0}
			p.panel(sc, m, f, share, n)
		}
	}
	p.Text(0, 0, fmt.Sprintf(`transform="translate(14 %.0f) rotate(-90)" text-anchor="middle" fill="#444"`, top+panelH/2), m.name)
}

func (p *picture) scale(sc scene, m metric) plot.Axis {
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
		return plot.Axis{Lo: 1, Hi: 2}
	}
	slices.Sort(all)
	if m.log {
		number := func(v float64) string { return fmt.Sprintf("%g", v) }
		return plot.Decades(all[0]/1.15, max(all[len(all)*97/100]*1.1, all[0]*2), number, 1, 2, 5)
	}
	return plot.Even(0, all[len(all)-1]*1.08, 5)
}

func (p *picture) panel(sc scene, m metric, f plot.Panel, share string, nodes int) {
	f.Across = plot.Axis{Lo: -0.5, Hi: float64(len(p.delays)) - 0.5}
	lines := make([][]plot.Point, len(p.policies))
	for i, d := range p.delays {
		at := place{sc.name, nodes, share, d.Seconds()}.plain()
		label := fmt.Sprintf("%g", d.Seconds())
		if d == fleetsim.Never {
			at, label = place{sc.name, nodes, "none", -1}, "none"
		}
		f.Across.Ticks = append(f.Across.Ticks, plot.Tick{At: float64(i), Label: label})
		if pt := p.at(sc, at); pt != nil {
			for k, s := range pt.scores {
				lines[k] = append(lines[k], plot.Point{X: float64(i), Y: m.of(s)})
			}
		}
	}
	f.Frame("")
	if one := p.at(sc, place{sc.name, 1, "none", -1}); one != nil {
		f.Level(m.of(one.judged), fmt.Sprintf(`stroke="%s" stroke-dasharray="5 4"`, plot.Colour(0)))
	}
	for k := len(lines) - 1; k >= 0; k-- {
		f.Line(lines[k], stroke(k))
	}
}
