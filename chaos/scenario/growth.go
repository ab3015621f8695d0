package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A process's resources must not grow with its served requests. Only a long life shows that,
// because tables and pools grow for a while.

const longLife = 3 * time.Minute

// How much the last quarter of such a life may exceed the second.
const (
	growthCount    = 20
	growthHeap     = 4 << 20
	growthResident = 16 << 20
	growthShare    = 0.1
)

type measure struct {
	what  string
	slack float64
	unit  float64
	of    func(*resources) float64
}

var measures = []measure{
	{"goroutines", growthCount, 1, func(r *resources) float64 { return r.goroutines }},
	{"descriptors", growthCount, 1, func(r *resources) float64 { return r.files }},
	{"MiB live heap", growthHeap, 1 << 20, func(r *resources) float64 { return r.heap }},
	{"MiB resident", growthResident, 1 << 20, func(r *resources) float64 { return r.resident }},
}

func (e *evidence) growth(f *finding) (note string) {
	for _, name := range e.nodes {
		for _, life := range e.lives(name) {
			f.checked++
			from, to := life[0].at, life[len(life)-1].at
			var quarters [4][]resources
			for _, r := range life {
				i := min(int(4*(r.at-from)/(to-from)), 3)
				quarters[i] = append(quarters[i], r)
			}
			var told []string
			for _, m := range measures {
				var medians []string
				var was, is float64
				for i, q := range quarters {
					if len(q) == 0 {
						continue
					}
					is = median(q, m.of)
					if i == 1 {
						was = is
					}
					medians = append(medians, fmt.Sprintf("%.4g", is/m.unit))
				}
				told = append(told, strings.Join(medians, ", ")+" "+m.what)
				if was > 0 && is > was*(1+growthShare)+m.slack {
					f.violate(to, name, "process %d has grown from %v to %v, by quarters: %s %s", life[0].pid, from, to, strings.Join(medians, ", "), m.what)
				}
			}
			note += fmt.Sprintf("; %s from %.0f to %.0f s, by quarters: %s", name, from.Seconds(), to.Seconds(), strings.Join(told, "; "))
		}
	}
	return note
}

func (e *evidence) lives(name string) (out [][]resources) {
	s := e.seen[name]
	if s == nil {
		return nil
	}
	var life []resources
	end := func() {
		if n := len(life); n > 0 && life[n-1].at-life[0].at >= longLife {
			out = append(out, life)
		}
		life = nil
	}
	for _, r := range s.usage {
		if r.at < e.calm || r.at > e.stopped {
			continue
		}
		if len(life) > 0 && life[0].pid != r.pid {
			end()
		}
		life = append(life, r)
	}
	end()
	return out
}

func median(list []resources, of func(*resources) float64) float64 {
	values := make([]float64, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}
	slices.Sort(values)
	return values[len(values)/2]
}
