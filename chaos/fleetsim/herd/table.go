package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const herdPreamble = `# The herd curve

Many routers that see the same idle engine all send it the same work. The more routers there are, and the later each learns what
the others did, the longer the queues, unless the policy expects it. Here every policy plays the same arrivals with 1 to 100
nodes that learn of each other's placements and load after a fixed delay, and share *both* placements and load, *prefix* (placements
only), *load* only, or *none*.
`

const tracesPreamble = `# The traces

Every policy plays the same arrivals of the published traces, at several loads, with 1 to 100 nodes that learn of each other's
placements and load after a fixed delay. The speeds of a trace make 16 engines prefill for 0.4, 0.7 and 0.9 of the time behind one
node with ` + "`argmin`" + `; agents (weka) run out of KV memory before, so they are played at their own speed and at twice that.
`

const method = `
Made by ` + "`%s`" + ` (seeds %s, code %s, %.0f minutes of processor time). Engines: %d, each with 10,000 prefill tokens/s and 1,500,000
tokens of KV memory. A figure is the mean over the seeds of each seed's figure; [%s.csv](%[6]s.csv) has every policy at every point:

- **tail** is the 99th percentile of the time to first token of ` + "`%s`" + ` over the lowest of all other policies: at most %.2f is wanted.
%s- **hits** is its hit rate over the best among policies whose p99 is at most %.2f times its own: at least %.2f is wanted. For **hits\***
  these policies' p99 is at most %.2f times the lowest other p99.

`

func (s *summary) markdown() string {
	var b strings.Builder
	seeds := make([]string, len(s.seeds))
	for i, seed := range s.seeds {
		seeds[i] = fmt.Sprint(seed)
	}
	command, mean := "make "+s.name, ""
	if len(s.part) > 0 {
		command += fmt.Sprintf(" GRID='%s'", strings.Join(s.part, " "))
	}
	if s.grid.mean > 0 {
		mean = fmt.Sprintf("- **mean** is the mean of the time to first token over the lowest of all other policies: at most %.2f is wanted.\n", s.grid.mean)
	}
	b.WriteString(s.preamble)
	fmt.Fprintf(&b, method, command, strings.Join(seeds, ", "), s.code, s.cpuS/60, backends, s.name,
		s.policies[0], s.tail, mean, comparable, hitShare, comparable)
	s.totals(&b)
	if s.missing > 0 {
		fmt.Fprintf(&b, "\n%d further points have not been played for all policies and seeds.\n", s.missing)
	}
	if s.picture {
		fmt.Fprintf(&b, "\n![p99 of the time to first token and hit rate over the delay](%s.svg)\n", s.name)
	} else {
		s.fleets(&b)
	}
	b.WriteString("\n## Points that miss\n\n")
	s.table(&b, slices.DeleteFunc(slices.Clone(s.points), func(p point) bool { return p.ok() }))
	return b.String()
}

// totals counts the points that hold, by what nodes share, or by the number of nodes where all share the same.
func (s *summary) totals(b *strings.Builder) {
	type group struct {
		name string
		in   func(*point) bool
	}
	var groups []group
	head := "nodes"
	if len(s.shares) > 1 {
		head = "nodes share"
		for _, share := range s.shares {
			groups = append(groups, group{string(share), func(p *point) bool { return p.Share == string(share) }})
		}
	} else {
		for _, n := range s.nodes {
			groups = append(groups, group{fmt.Sprint(n), func(p *point) bool { return p.Nodes == n }})
		}
	}
	groups = append(groups, group{"**all**", func(*point) bool { return true }})
	heads, rule := []string{head, "points", "tail holds"}, "|---|---|---|"
	if s.grid.mean > 0 {
		heads, rule = append(heads, "mean holds"), rule+"---|"
	}
	fmt.Fprintf(b, "| %s | hits hold | hits* hold |\n%s---|---|\n", strings.Join(heads, " | "), rule)
	for _, g := range groups {
		var n, tail, mean, near, rival int
		for i := range s.points {
			if p := &s.points[i]; g.in(p) {
				n, tail, mean, near, rival = n+1, tail+count(p.tailOK), mean+count(p.meanOK), near+count(p.nearOK), rival+count(p.rivalOK)
			}
		}
		counts := fmt.Sprintf("%d | %d", n, tail)
		if s.grid.mean > 0 {
			counts += fmt.Sprintf(" | %d", mean)
		}
		fmt.Fprintf(b, "| %s | %s | %d | %d |\n", g.name, counts, near, rival)
	}
}

// What 8 nodes with reports of 200 ms ago must keep of one node.
const (
	fleetTail = 1.15
	fleetHits = 0.98
)

func (s *summary) fleets(b *strings.Builder) {
	fmt.Fprintf(b, "\n## 8 nodes against one\n\n`%s` at 200 ms: p99 at most %.2f and hits at least %.2f times those of one node are wanted.\n\n"+
		"| trace | speed | p99 | hits |\n|---|---|---|---|\n", s.policies[0], fleetTail, fleetHits)
	for _, sc := range s.scenes {
		one := s.at(sc, place{sc.name, 1, "none", -1})
		fleet := s.at(sc, place{sc.name, 8, "both", (200 * time.Millisecond).Seconds()})
		if one == nil || fleet == nil {
			continue
		}
		tail, hits := fleet.judged.p99/one.judged.p99, "-" // no prompt has anything in common
		if one.judged.hit > 0 {
			share := fleet.judged.hit / one.judged.hit
			hits = mark(share, share >= fleetHits)
		}
		fmt.Fprintf(b, "| %s | %g | %s | %s |\n", sc.short(), sc.speed, mark(tail, tail <= fleetTail), hits)
	}
}

func (s *summary) at(sc scene, pl place) *point {
	i := slices.IndexFunc(s.points, func(p point) bool { return p.place == pl && p.speed == sc.speed })
	if i < 0 {
		return nil
	}
	return &s.points[i]
}

// short is the name of a trace without its publisher: the figures stand in narrow columns.
func (sc scene) short() string {
	_, name, found := strings.Cut(sc.name, "_")
	if !found {
		return sc.name
	}
	return strings.TrimSuffix(name, "_synthetic")
}

func count(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

func (s *summary) table(b *strings.Builder, points []point) {
	mean, rule := "", ""
	if s.grid.mean > 0 {
		mean, rule = " mean |", "---|"
	}
	fmt.Fprintf(b, "| trace | speed | nodes | share | delay | %s p99 s | lowest other | tail |%s %[1]s hits %% | best comparable | hits | hits* |\n|---|---|---|---|---|---|---|---|%[3]s---|---|---|---|\n",
		s.policies[0], mean, rule)
	for i := range points {
		p := &points[i]
		if s.grid.mean > 0 {
			mean = " " + mark(p.mean, p.meanOK) + " |"
		}
		fmt.Fprintf(b, "| %s | %g | %d | %s | %s | %.2f | %.2f %s | %s |%s %.1f | %.1f %s | %s | %s |\n", scene{p.Scene, p.speed}.short(), p.speed, p.Nodes, p.Share, p.delay(),
			p.judged.p99/1000, p.rival.p99/1000, p.rival.policy, mark(p.tail, p.tailOK), mean, 100*p.judged.hit, 100*p.nearHit.hit, p.nearHit.policy,
			mark(p.nearShare, p.nearOK), mark(p.rivalShare, p.rivalOK))
	}
}

// csv is every figure: a row for each point and policy. A delay of -1 means that nodes share nothing.
func (s *summary) csv() string {
	var b strings.Builder
	b.WriteString("trace,speed,nodes,share,delay_s,policy,ttft_p99_s,ttft_mean_s,hit_rate\n")
	for i := range s.points {
		for _, x := range s.points[i].scores {
			p := &s.points[i]
			fmt.Fprintf(&b, "%s,%g,%d,%s,%g,%s,%.3f,%.3f,%.4f\n", p.Scene, p.speed, p.Nodes, p.Share, p.DelayS, x.policy, x.p99/1000, x.mean/1000, x.hit)
		}
	}
	return b.String()
}

func (p place) delay() string {
	if p.DelayS < 0 {
		return "-"
	}
	return fmt.Sprintf("%g s", p.DelayS)
}

func mark(ratio float64, ok bool) string {
	if ok {
		return fmt.Sprintf("%.3f", ratio)
	}
	return fmt.Sprintf("**%.3f**", ratio)
}
