package scenario

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// dice draws a schedule from the seed, the size of the fleet and the length of the run alone.
type dice struct {
	*rand.Rand
	nodes, engines []string
	from, to       time.Duration
}

func newDice(seed uint64, nodes, engines int, length time.Duration) *dice {
	return &dice{rand.New(rand.NewPCG(seed, 0xc4a05)), names("node", nodes), names("engine", engines), leadTime, length - tailTime}
}

func (d *dice) some(list []string, n int) []string {
	out := make([]string, 0, n)
	for _, i := range d.Perm(len(list))[:min(n, len(list))] {
		out = append(out, list[i])
	}
	return out
}

func (d *dice) node() string   { return d.nodes[d.IntN(len(d.nodes))] }
func (d *dice) engine() string { return d.engines[d.IntN(len(d.engines))] }

// part is the i-th of n equal parts of the time for events, with begin and end each moved inwards
// by up to a tenth.
func (d *dice) part(i, n int) (at, length time.Duration) {
	whole := (d.to - d.from) / time.Duration(n)
	jitter := time.Duration(d.Int64N(int64(whole / 10)))
	return round(d.from + time.Duration(i)*whole + jitter), round(whole - whole/10 - jitter)
}

func round(d time.Duration) time.Duration { return d.Truncate(100 * time.Millisecond) }

func event(at, length time.Duration, format string, args ...any) Event {
	line := fmt.Sprintf("%v %s", at, fmt.Sprintf(format, args...))
	if length > 0 {
		line += " for " + length.String()
	}
	e, err := parseEvent(strings.Fields(line))
	if err != nil {
		panic(fmt.Sprintf("scenario: %q: %v", line, err))
	}
	return e
}
