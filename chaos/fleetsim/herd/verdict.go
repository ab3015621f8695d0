package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Demands on the judged policy at every point.
const (
	hitShare   = 0.97 // its hit rate over the best of the comparable policies
	comparable = 1.20 // a policy is comparable up to this ratio of p99
)

type score struct {
	policy    string
	p99, mean float64 // ms
	hit       float64 // share
}

type verdict struct {
	judged score
	rival  score
	tail   float64
	tailOK bool
	mean   float64 // its mean over the lowest of all other policies
	meanOK bool

	// Best hit rate among policies comparable with the judged policy.
	nearHit   score
	nearShare float64
	nearOK    bool
	// Best hit rate among policies comparable with rival, the other reading of the demand.
	rivalHit   score
	rivalShare float64
	rivalOK    bool
}

func (v *verdict) ok() bool { return v.tailOK && v.meanOK && v.nearOK && v.rivalOK }

func (g *grid) judge(scores []score) verdict {
	v := verdict{judged: scores[0]}
	others := scores[1:]
	v.rival = slices.MinFunc(others, func(a, b score) int { return cmp.Compare(a.p99, b.p99) })
	v.tail = v.judged.p99 / v.rival.p99
	v.tailOK = v.tail <= g.tail
	lowest := slices.MinFunc(others, func(a, b score) int { return cmp.Compare(a.mean, b.mean) }).mean
	v.mean, v.meanOK = v.judged.mean/max(lowest, 1e-9), g.mean == 0 || v.judged.mean <= g.mean*lowest
	best := func(limit float64) (score, float64, bool) {
		top := v.judged
		for _, s := range others {
			if s.p99 <= limit && s.hit > top.hit {
				top = s
			}
		}
		share := 1.0
		if top.hit > 0 {
			share = v.judged.hit / top.hit
		}
		return top, share, share >= hitShare
	}
	v.nearHit, v.nearShare, v.nearOK = best(comparable * v.judged.p99)
	v.rivalHit, v.rivalShare, v.rivalOK = best(comparable * v.rival.p99)
	return v
}

type summary struct {
	options
	points  []point
	missing int
	code    string // digests of the code that played the points
	cpuS    float64
}

type point struct {
	place
	speed  float64
	scores []score
	verdict
}

func summarise(o options, b *book) *summary {
	s, codes := &summary{options: o}, map[string]bool{}
	for _, l := range b.lines {
		s.cpuS += l.CPUS
		codes[l.Code] = true
	}
	s.code = strings.Join(slices.Sorted(maps.Keys(codes)), " and ")
	for _, sc := range o.scenes {
		for _, nodes := range o.nodes {
			for _, p := range o.places(sc, nodes) {
				scores := make([]score, 0, len(o.policies))
				for _, policy := range o.policies {
					if sum, ok := b.mean(sc, p, policy, o.seeds); ok {
						scores = append(scores, sum)
					}
				}
				if len(scores) < len(o.policies) {
					s.missing++
					continue
				}
				s.points = append(s.points, point{p, sc.speed, scores, o.judge(scores)})
			}
		}
	}
	return s
}

func (b *book) mean(sc scene, p place, policy string, seeds []uint64) (score, bool) {
	s := score{policy: policy}
	for _, seed := range seeds {
		l := b.lines[key{sc, seed, p.Nodes, policy}]
		i := slices.IndexFunc(l.Runs, func(r result) bool { return r.place == p })
		if i < 0 {
			return s, false
		}
		r, n := &l.Runs[i], float64(len(seeds))
		s.p99 += r.TTFTP99 / n
		s.mean += r.Mean / n
		s.hit += r.HitRate / n
	}
	return s, true
}
