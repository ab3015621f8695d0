package workload

import (
	"fmt"
	"math"
)

// Point: a share P of all values is at most V.
type Point struct {
	V float64
	P float64
}

// CDF is a piecewise-linear cumulative distribution: at least two points, values and shares rising,
// shares from 0 to 1.
type CDF []Point

// At returns the u-quantile; u is in [0, 1].
func (c CDF) At(u float64) float64 {
	for i := 1; i < len(c); i++ {
		if u <= c[i].P {
			a, b := c[i-1], c[i]
			return a.V + (b.V-a.V)*(u-a.P)/(b.P-a.P)
		}
	}
	return c[len(c)-1].V
}

// Mean returns the expected value.
func (c CDF) Mean() float64 {
	var m float64
	for i := 1; i < len(c); i++ {
		m += (c[i].P - c[i-1].P) * (c[i].V + c[i-1].V) / 2
	}
	return m
}

func (c CDF) check() error {
	if len(c) < 2 || c[0].P != 0 || c[len(c)-1].P != 1 {
		return fmt.Errorf("a distribution runs from share 0 to share 1, got %v", c)
	}
	if c[0].V < 1 {
		return fmt.Errorf("a distribution of lengths starts at 1 or above, got %v", c[0].V)
	}
	for i := 1; i < len(c); i++ {
		if !(c[i].V > c[i-1].V) || !(c[i].P > c[i-1].P) || math.IsInf(c[i].V, 0) {
			return fmt.Errorf("a distribution rises from point to point, got %v then %v", c[i-1], c[i])
		}
	}
	return nil
}
