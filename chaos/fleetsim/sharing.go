package fleetsim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"grapevine/proxy/policy"
)

// Share says what the nodes of a run tell each other.
type Share string

const (
	// ShareBoth is what live nodes do: placements and outstanding work.
	ShareBoth Share = "both"
	// SharePrefix leaves out the work.
	SharePrefix Share = "prefix"
	// ShareLoad leaves out the placements.
	ShareLoad Share = "load"
	// ShareNone: every node knows what it has sent itself.
	ShareNone Share = "none"
)

func (s Share) prefixes() bool { return s == ShareBoth || s == SharePrefix }

func (s Share) loads() bool { return s == ShareBoth || s == ShareLoad }

// Never is the staleness of nodes that do not hear of each other at all.
const Never time.Duration = -1

// DefaultStaleness is about the worst that live nodes in one place see: a flush every 50 ms, the network, and a machine
// that is busy.
const DefaultStaleness = 200 * time.Millisecond

// MaxStaleness bounds what a mistyped flag can keep in memory.
const MaxStaleness = time.Hour

// ParseStaleness reads a delay, or "none" for [Never].
func ParseStaleness(s string) (time.Duration, error) {
	if s == "none" {
		return Never, nil
	}
	d, err := time.ParseDuration(s)
	if s == "0" {
		d, err = 0, nil
	}
	if err != nil || d < 0 || d > MaxStaleness {
		return 0, fmt.Errorf("%w: staleness %q: want a duration such as 200ms, 0 or none, at most %v", ErrConfig, s, MaxStaleness)
	}
	return d, nil
}

// Policies returns the names of all a simulation can compare: the strategies of live routers, the default first, and the
// baselines.
func Policies() []string {
	return append(policy.Strategies(), slices.Sorted(maps.Keys(Baselines()))...)
}

// blind are the strategies that never ask what a backend holds. Their routers run
// without a tree: it would change no choice, and most of a run's time goes into
// recording placements. They predict nothing, so no prediction is reported.
var blind = map[string]bool{
	policy.PrefixHash: true, policy.LeastRequest: true, policy.Session: true, policy.RoundRobin: true, policy.Random: true,
}

// loners look at placements, but at no load other than their own.
var loners = map[string]bool{"sglang": true}

// deaf are those of the blind that do not ask for load either: nothing a node could tell another changes their choice.
var deaf = map[string]bool{policy.Session: true, policy.RoundRobin: true, policy.Random: true}

// point is one run: what is varied in a Config.
type point struct {
	policy    string
	nodes     int
	share     Share
	staleness time.Duration
}

// effective returns the point that stands for all that cannot differ from this one, so that a grid with every combination
// need not be played in full: what is never heard of, what nobody listens to, and fleets of one.
func (p point) effective() point {
	if p.nodes == 1 || p.staleness == Never || deaf[p.policy] {
		p.share = ShareNone
	}
	if loners[p.policy] {
		switch p.share {
		case ShareBoth:
			p.share = SharePrefix
		case ShareLoad:
			p.share = ShareNone
		}
	}
	if blind[p.policy] {
		switch p.share {
		case ShareBoth:
			p.share = ShareLoad
		case SharePrefix:
			p.share = ShareNone
		}
	}
	if p.share == ShareNone {
		p.staleness = Never
	}
	return p
}

// knowledge returns what routers are to be told of the fleet: how many they are, and how late each hears of the others'
// loads and of their placements.
func (p point) knowledge() (nodes int, loads, facts time.Duration) {
	loads, facts = policy.Never, policy.Never
	if p.staleness != Never && p.share.loads() {
		loads = p.staleness
	}
	if p.staleness != Never && p.share.prefixes() {
		facts = p.staleness
	}
	if p.nodes == 1 {
		loads, facts = 0, 0
	}
	return p.nodes, loads, facts
}

// points lists the runs of a Config in the order of their reports: by policy, then nodes, then share, then staleness.
func (c *Config) points() []point {
	var out []point
	for _, policy := range c.Policies {
		for _, nodes := range c.Nodes {
			for _, share := range c.Share {
				for _, staleness := range c.Staleness {
					out = append(out, point{policy, nodes, share, staleness})
				}
			}
		}
	}
	return out
}
