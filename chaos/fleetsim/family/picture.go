package family

import (
	"fmt"
	"io"

	"grapevine.example/chaos/plot"
)

// Sizes of the picture in pixels.
const (
	panelW, panelH = 290, 220
	leftW, topH    = 46, 62
	gapX           = 24
)

// Picture draws, per measure, which share of the draws has at most a ratio: a line per rival. The
// results, at least one, are those of [Play] with these oracles.
func Picture(w io.Writer, results []Result, oracles []string) error {
	list := rivals(oracles, results)
	p := plot.New(leftW+float64(len(measures))*(panelW+gapX), topH+panelH+36+20*float64(len(list)))
	p.Text(leftW, 22, `font-size="15"`, fmt.Sprintf("%s over others in %d draws: share of draws at or below a ratio", Judged, len(results)))
	for i := range measures {
		m := &measures[i]
		f := plot.Panel{
			Picture: p, Left: leftW + float64(i)*(panelW+gapX), Top: topH, Width: panelW, Height: panelH, Bare: i > 0,
			Across: plot.Axis{Lo: 0.25, Hi: 2, Log: true}, Up: plot.Even(0, 100, 5),
		}
		better := "left is better"
		if m.more {
			f.Across, better = plot.Axis{Lo: 0.7, Hi: 1.4, Log: true}, "right is better"
		}
		for _, at := range []float64{0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 2} {
			if at >= f.Across.Lo && at <= f.Across.Hi && (m.more || at != 0.9 && at != 1.1 && at != 0.8) {
				f.Across.Ticks = append(f.Across.Ticks, plot.Tick{At: at, Label: fmt.Sprint(at)})
			}
		}
		f.Frame(m.name + " (" + better + ")")
		f.Line([]plot.Point{{X: 1, Y: 0}, {X: 1, Y: 100}}, `stroke="#888" stroke-dasharray="4 3"`)
		for k, against := range list {
			f.Line(steps(m.ratios(results, against)), stroke(k))
		}
	}
	for k, against := range list {
		y := topH + panelH + 40 + 20*float64(k)
		p.Rule(leftW, y, leftW+24, y, stroke(k))
		p.Text(leftW+30, y+4, `font-size="12"`, "over "+against.name)
	}
	_, err := io.WriteString(w, p.SVG())
	return err
}

func stroke(i int) string { return fmt.Sprintf(`stroke="%s" stroke-width="2"`, plot.Colour(i)) }

// steps is the distribution of sorted values, in percent.
func steps(v []float64) (out []plot.Point) {
	for i, x := range v {
		n := 100 / float64(len(v))
		out = append(out, plot.Point{X: x, Y: n * float64(i)}, plot.Point{X: x, Y: n * float64(i+1)})
	}
	return out
}
