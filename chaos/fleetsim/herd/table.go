package main

import (
	"fmt"
	"strings"
)

const preamble = `# The herd curve

Many routers that all see the same idle engine send it the same work: the more routers there are and the older their view of each
other, the worse, unless the policy knows. Below, every policy plays the same arrivals with so many nodes, each node learning what
the others did a fixed delay later. Engines: %d of 10,000 prefill tokens/s and 1,500,000 tokens of KV memory.

| trace | speed |
|---|---|
%s
Made by ` + "`go run ./chaos/fleetsim/herd`" + ` (seeds %s, code %s%s, %.0f minutes of processor time). A figure is the mean over the seeds
of each seed's figure. *shares*: what nodes tell each other, **both** placements and load, only one of them, or **none**.
*tail* is the 99th percentile of the first token's time of ` + "`%s`" + ` over the best of all other policies (at most %.2f wanted).
*hits* is its hit rate over the best among the policies (itself included) whose p99 is at most %.2f times its own; *hits\** the same among those within
%.2f times the best other p99, the other way to read "within 20 %% of it" (each at least %.2f wanted). **x** marks what falls short.

`

func (s *summary) markdown() string {
	var b strings.Builder
	speeds, seeds := "", make([]string, len(s.seeds))
	for _, sc := range scenes {
		speeds += fmt.Sprintf("| %s | %g |\n", sc.name, sc.speed)
	}
	for i, seed := range s.seeds {
		seeds[i] = fmt.Sprint(seed)
	}
	mixed := ""
	if s.mixed {
		mixed = " and earlier ones"
	}
	fmt.Fprintf(&b, preamble, backends, speeds, strings.Join(seeds, ", "), s.code, mixed, s.cpuS/60, s.policies[0], tailAllowance, comparable, comparable, hitShare)
	tail, near, rival := 0, 0, 0
	for i := range s.points {
		p := &s.points[i]
		tail += count(p.tailOK)
		near += count(p.nearOK)
		rival += count(p.rivalOK)
	}
	n := len(s.points)
	fmt.Fprintf(&b, "Of %d points the tail holds at **%d**, the hits at **%d** (*hits\\**: **%d**).", n, tail, near, rival)
	if s.missing > 0 {
		fmt.Fprintf(&b, " %d further points have not been played for all policies and seeds.", s.missing)
	}
	b.WriteString("\n\n![p99 of the first token and hit rate over staleness](herd.svg)\n\n")
	for _, sc := range scenes {
		s.verdicts(&b, sc)
	}
	b.WriteString("## All figures\n\nCell: p99 of the first token in seconds · hit rate in percent.\n\n")
	for _, sc := range scenes {
		s.figures(&b, sc)
	}
	return b.String()
}

func count(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

func (s *summary) verdicts(b *strings.Builder, sc scene) {
	judged := s.policies[0]
	fmt.Fprintf(b, "## %s\n\n| nodes | shares | delay | %s p99 s | best other p99 s | tail | %s hit %% | best comparable hit %% | hits | hits* |\n|---|---|---|---|---|---|---|---|---|---|\n", sc.name, judged, judged)
	for i := range s.points {
		p := &s.points[i]
		if p.Scene != sc.name {
			continue
		}
		fmt.Fprintf(b, "| %d | %s | %s | %.2f | %.2f %s | %s | %.1f | %.1f %s | %s | %s |\n", p.Nodes, p.Share, p.delay(), p.judged.p99/1000,
			p.rival.p99/1000, p.rival.policy, mark(p.tail, p.tailOK), 100*p.judged.hit, 100*p.nearHit.hit, p.nearHit.policy,
			mark(p.nearShare, p.nearOK), mark(p.rivalShare, p.rivalOK))
	}
	b.WriteString("\n")
}

func (s *summary) figures(b *strings.Builder, sc scene) {
	fmt.Fprintf(b, "### %s\n\n| nodes | shares | delay | %s |\n|---|---|---|%s\n", sc.name, strings.Join(s.policies, " | "), strings.Repeat("---|", len(s.policies)))
	for i := range s.points {
		p := &s.points[i]
		if p.Scene != sc.name {
			continue
		}
		fmt.Fprintf(b, "| %d | %s | %s |", p.Nodes, p.Share, p.delay())
		for _, x := range p.scores {
			fmt.Fprintf(b, " %s · %.1f |", figure(x.p99/1000), 100*x.hit)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
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
	return fmt.Sprintf("**%.3f x**", ratio)
}

func figure(s float64) string {
	if s >= 100 {
		return fmt.Sprintf("%.0f", s)
	}
	return fmt.Sprintf("%.3g", s)
}
