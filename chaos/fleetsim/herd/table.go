package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const preamble = `# The herd curve

Many routers that see the same idle engine all send it the same work. The more routers there are, and the later each learns what
the others did, the longer the queues, unless the policy expects it. Here every policy plays the same arrivals with 1 to 100
nodes that learn of each other's placements and load after a fixed delay. Engines: %d, each with 10,000 prefill tokens/s and
1,500,000 tokens of KV memory. Traces: %s.

Made by ` + "`make herd`" + ` (seeds %s, code %s, %.0f minutes of processor time). A figure is the mean over the seeds of each seed's
figure. [herd.csv](herd.csv) has every policy at every point; nodes share *both* placements and load, *prefix* (placements
only), *load* only, or *none*. At each point:

- **tail** is the 99th percentile of the time to first token of ` + "`%s`" + ` over the lowest of all other policies: at most %.2f is wanted.
- **hits** is its hit rate over the best among policies whose p99 is at most %.2f times its own: at least %.2f is wanted. For **hits\***
  these policies' p99 is at most %.2f times the lowest other p99.

`

func (s *summary) markdown() string {
	var b strings.Builder
	traces, seeds := make([]string, len(scenes)), make([]string, len(s.seeds))
	for i, sc := range scenes {
		traces[i] = fmt.Sprintf("%s at %g times its speed", sc.name, sc.speed)
	}
	for i, seed := range s.seeds {
		seeds[i] = fmt.Sprint(seed)
	}
	fmt.Fprintf(&b, preamble, backends, strings.Join(traces, ", "), strings.Join(seeds, ", "), s.code, s.cpuS/60,
		s.policies[0], tailAllowance, comparable, hitShare, comparable)
	b.WriteString("| nodes share | points | tail holds | hits hold | hits* hold |\n|---|---|---|---|---|\n")
	for _, share := range append(shares, "") {
		var n, tail, near, rival int
		for i := range s.points {
			if p := &s.points[i]; share == "" || p.Share == string(share) {
				n, tail, near, rival = n+1, tail+count(p.tailOK), near+count(p.nearOK), rival+count(p.rivalOK)
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", cmp.Or(string(share), "**all**"), n, tail, near, rival)
	}
	if s.missing > 0 {
		fmt.Fprintf(&b, "\n%d further points have not been played for all policies and seeds.\n", s.missing)
	}
	b.WriteString("\n![p99 of the time to first token and hit rate over the delay](herd.svg)\n\n## Points that miss\n\n")
	s.table(&b, slices.DeleteFunc(slices.Clone(s.points), func(p point) bool { return p.ok() }))
	return b.String()
}

func count(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

func (s *summary) table(b *strings.Builder, points []point) {
	fmt.Fprintf(b, "| trace | nodes | share | delay | %s p99 s | lowest other | tail | %[1]s hits %% | best comparable | hits | hits* |\n|---|---|---|---|---|---|---|---|---|---|---|\n", s.policies[0])
	for i := range points {
		p := &points[i]
		fmt.Fprintf(b, "| %s | %d | %s | %s | %.2f | %.2f %s | %s | %.1f | %.1f %s | %s | %s |\n", strings.Split(p.Scene, "_")[1], p.Nodes, p.Share, p.delay(),
			p.judged.p99/1000, p.rival.p99/1000, p.rival.policy, mark(p.tail, p.tailOK), 100*p.judged.hit, 100*p.nearHit.hit, p.nearHit.policy,
			mark(p.nearShare, p.nearOK), mark(p.rivalShare, p.rivalOK))
	}
}

// csv is every figure: a row for each point and policy. A delay of -1 means that nodes share nothing.
func (s *summary) csv() string {
	var b strings.Builder
	b.WriteString("trace,nodes,share,delay_s,policy,ttft_p99_s,hit_rate\n")
	for i := range s.points {
		for _, x := range s.points[i].scores {
			p := s.points[i].place
			fmt.Fprintf(&b, "%s,%d,%s,%g,%s,%.3f,%.4f\n", p.Scene, p.Nodes, p.Share, p.DelayS, x.policy, x.p99/1000, x.hit)
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
