package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
)

func labels(a Axis) (out []string) {
	for _, t := range a.Ticks {
		out = append(out, t.Label)
	}
	return out
}

func TestTicks(t *testing.T) {
	number := func(v float64) string { return fmt.Sprintf("%.3g", v) }
	for _, tc := range []struct {
		axis Axis
		want string
	}{
		{Even(0, 100, 5), "0 20 40 60 80 100"},
		{Even(0, 1, 4), "0 0.2 0.4 0.6 0.8 1"},
		{Even(0, 37, 10), "0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36"},
		{Even(0, 1080, 5), "0 200 400 600 800 1000"},
		{Decades(1, 1e4, number, 1), "1 10 100 1e+03 1e+04"},
		{Decades(0.15, 3, number, 1, 2, 5), "0.2 0.5 1 2"},
	} {
		if got := strings.Join(labels(tc.axis), " "); got != tc.want {
			t.Errorf("%g to %g: %s, want %s", tc.axis.Lo, tc.axis.Hi, got, tc.want)
		}
	}
}

func TestSVG(t *testing.T) {
	p := New(200, 100)
	f := Panel{Picture: p, Left: 10, Top: 20, Width: 100, Height: 50, Across: Even(0, 10, 5), Up: Decades(1, 100, func(float64) string { return "<&>" }, 1)}
	f.Frame(`a "title" <&>`)
	f.Line([]Point{{0, 1}, {5, 10}, {6, math.NaN()}, {10, 1000}}, `stroke="red"`)
	f.Dot(Point{5, 10}, "")
	p.Box(1, 2, 3, 4, "", "<&>")
	svg := p.SVG()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, want := range []string{`points="10.0,70.0 60.0,45.0"`, `points="110.0,20.0"`, `cx="60.0" cy="45.0"`, "&lt;&amp;&gt;"} {
		if !strings.Contains(svg, want) {
			t.Errorf("lacks %s:\n%s", want, svg)
		}
	}
}
