package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const resourcesBound = 20 * time.Second

var resourcesReturn = Invariant{
	Name:    "resources-return",
	Promise: "memory, goroutines and descriptors of a node return to their values before the faults, and do not grow with the requests served",
	Bound: "20 s after the last request ended: at most a quarter and 40 goroutines, 40 descriptors, 16 MiB of live heap, 48 MiB " +
		"resident above the highest values under load before the faults. The tree and the gossip journal, which fill for " +
		"minutes, do not count, nor a goroutine and a descriptor for each open client connection",
	Seen: "each node's process metrics, every two seconds. A process that lived for three minutes or longer has grown if the " +
		"median of its last quarter exceeds that of its second by a tenth and 4 MiB of live heap, 16 MiB resident, 20 goroutines " +
		"or descriptors",
	judge: func(e *evidence, f *finding) {
		var most [len(measures)]float64 // before the faults
		known := false
		for _, s := range e.seen {
			for _, r := range s.usage {
				if r.at < e.calm || r.at > e.struck {
					continue
				}
				known = true
				for i, used := range r.used {
					most[i] = max(most[i], used)
				}
			}
		}
		lived := e.growth(f)
		if !known || e.struck >= e.stopped {
			return
		}
		for _, name := range e.nodes {
			r, ok := e.quiet.after[name]
			if !ok {
				continue
			}
			f.checked++
			for i, m := range measures {
				if is := r.used[i]; is > most[i]*(1+slackShare)+m.slack {
					f.violate(r.at, name, "%.1f %s, %.1f at most before", is/m.unit, m.what, most[i]/m.unit)
				}
			}
		}
		var before []string
		for i, m := range measures {
			before = append(before, fmt.Sprintf("%.4g %s", most[i]/m.unit, m.what))
		}
		f.note = "before, at most: " + strings.Join(before, ", ") + lived
	},
}

const longLife = 3 * time.Minute

// How much more a process may have than before the faults (a share and a slack), and in the last
// quarter of a long life than in the second: tables and pools grow for a while.
const (
	slackShare  = 0.25
	growthShare = 0.1
)

const (
	goroutines = iota
	files
	heap
	resident
)

var measures = [...]struct {
	what, metric        string
	slack, growth, unit float64
}{
	goroutines: {"goroutines", "go_goroutines", 40, 20, 1},
	files:      {"descriptors", "process_open_fds", 40, 20, 1},
	heap:       {"MiB live heap", "go_memstats_next_gc_bytes", 16 << 20, 4 << 20, 1 << 20},
	resident:   {"MiB resident", "process_resident_memory_bytes", 48 << 20, 16 << 20, 1 << 20},
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
			var all []string
			for what, m := range measures {
				var medians [4]float64 // in the measure's unit
				for i, q := range quarters {
					medians[i] = median(q, what) / m.unit
				}
				text := fmt.Sprintf("%.4g %s", medians, m.what)
				all = append(all, text)
				if was := medians[1]; was > 0 && medians[3] > was*(1+growthShare)+m.growth/m.unit {
					f.violate(to, name, "process %d has grown from %v to %v, by quarters: %s", life[0].pid, from, to, text)
				}
			}
			note += fmt.Sprintf("; %s from %.0f to %.0f s, by quarters: %s", name, from.Seconds(), to.Seconds(), strings.Join(all, "; "))
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

func median(list []resources, what int) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.SortFunc(list, func(a, b resources) int { return cmp.Compare(a.used[what], b.used[what]) })
	return list[len(list)/2].used[what]
}
