package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"grapevine.example/chaos/fleetsim"
)

type scene struct {
	name  string
	speed float64
}

// grid is what one command plays: traces over fleets, and what is asked of the judged policy at every point.
type grid struct {
	name   string
	scenes []scene
	nodes  []int
	shares []fleetsim.Share
	delays []time.Duration

	preamble string
	picture  bool // over the delay

	tail, mean float64 // its p99 and mean over the lowest of all other policies at most; 0: not asked
}

var grids = []*grid{
	{
		name:   "herd",
		scenes: []scene{{"mooncake_conversation", 4}, {"mooncake_hotmix_synthetic", 3.5}},
		nodes:  []int{1, 3, 16, 100},
		shares: []fleetsim.Share{fleetsim.ShareBoth, fleetsim.SharePrefix, fleetsim.ShareLoad, fleetsim.ShareNone},
		delays: []time.Duration{0, 200 * time.Millisecond, time.Second, 5 * time.Second, fleetsim.Never},
		tail:   1.05, preamble: herdPreamble, picture: true,
	},
	{
		// Each trace at the speeds at which 16 engines prefill for 0.4, 0.7 and 0.9 of the time behind one node with argmin. Agents
		// run out of KV memory before that, so they are played at their own speed and at twice that.
		name: "traces",
		scenes: []scene{
			{"mooncake_conversation", 2.277}, {"mooncake_conversation", 3.851}, {"mooncake_conversation", 4.903},
			{"mooncake_hotmix_synthetic", 2.135}, {"mooncake_hotmix_synthetic", 3.668}, {"mooncake_hotmix_synthetic", 4.604},
			{"mooncake_synthetic", 2.011}, {"mooncake_synthetic", 3.512}, {"mooncake_synthetic", 4.493},
			{"ragpulse", 2357}, {"ragpulse", 4124}, {"ragpulse", 5276},
			{"azure2023_conv_lengths", 9.308}, {"azure2023_conv_lengths", 16.82}, {"azure2023_conv_lengths", 20.94},
			{"azure2023_code_lengths", 10.15}, {"azure2023_code_lengths", 17.88}, {"azure2023_code_lengths", 22.84},
			{"weka_claude_code", 1}, {"weka_claude_code", 2},
		},
		nodes:  []int{1, 8, 16, 100},
		shares: []fleetsim.Share{fleetsim.ShareBoth},
		delays: []time.Duration{200 * time.Millisecond, time.Second},
		tail:   1.03, mean: 1.05, preamble: tracesPreamble,
	},
}

func gridOf(name string) (*grid, error) {
	names := make([]string, len(grids))
	for i, g := range grids {
		if names[i] = g.name; g.name == name {
			return g, nil
		}
	}
	return nil, fmt.Errorf("no grid %q: there are %s", name, strings.Join(names, " and "))
}

type place struct {
	Scene  string  `json:"scene"`
	Nodes  int     `json:"nodes"`
	Share  string  `json:"share"`
	DelayS float64 `json:"delay_s"`
}

// plain maps equivalent places to one name: a fleet of one node, and nodes that share nothing at
// any delay.
func (p place) plain() place {
	if p.Nodes == 1 || p.DelayS < 0 || p.Share == string(fleetsim.ShareNone) {
		p.Share, p.DelayS = string(fleetsim.ShareNone), -1
	}
	return p
}

// places returns the points of a scene with so many nodes, by share and delay, and nothing shared last.
func (g *grid) places(sc scene, nodes int) []place {
	var out []place
	for _, share := range g.shares {
		for _, d := range g.delays {
			p := place{sc.name, nodes, string(share), -1}
			if d >= 0 {
				p.DelayS = d.Seconds()
			}
			if p = p.plain(); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b place) int { return cmp.Compare(min(b.DelayS, 0), min(a.DelayS, 0)) })
	return out
}
