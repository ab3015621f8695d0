package fleetsim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"grapevine.example/node/share"
	"grapevine.example/proxy/policy"
)

// Share selects what the nodes of a run send each other.
type Share string

const (
	// ShareBoth is what live nodes share: placements and outstanding work.
	ShareBoth   Share = "both"
	SharePrefix Share = "prefix"
	ShareLoad   Share = "load"
	ShareNone   Share = "none"
)

func (s Share) prefixes() bool { return s == ShareBoth || s == SharePrefix }

func (s Share) loads() bool { return s == ShareBoth || s == ShareLoad }

// withhold removes from a node's state what is not shared.
func (s Share) withhold(state *share.State) {
	if !s.loads() {
		state.Popularity.Traffic = nil
	}
	if !s.prefixes() {
		for i := range state.Popularity.Traffic {
			state.Popularity.Traffic[i].Prefixes = nil
		}
	}
	for i := range state.Claims {
		if c := &state.Claims[i]; !s.prefixes() {
			c.LRUDistance = share.Measure{}
		} else if !s.loads() {
			c.Rate = share.Measure{}
		}
	}
}

// Never is the staleness of nodes that share nothing.
const Never time.Duration = -1

// DefaultStaleness is about the worst in one place: a flush every 50 ms, the network, and a busy
// machine.
const DefaultStaleness = 200 * time.Millisecond

// MaxStaleness bounds the memory that a mistyped flag can use.
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

// Policies returns the strategies of live routers, the default first, and the baselines.
func Policies() []string {
	return append(policy.Strategies(), slices.Sorted(maps.Keys(Baselines()))...)
}

// blind strategies ignore cache contents. Their routers have no tree, which would take most of the
// run's time.
var blind = map[string]bool{
	policy.PrefixHash: true, policy.LeastRequest: true, policy.Session: true, policy.RoundRobin: true, policy.Random: true,
}

var loners = map[string]bool{"sglang": true}

var deaf = map[string]bool{policy.Session: true, policy.RoundRobin: true, policy.Random: true}

// point is one run. Its policy is the strategy's name and what the routers know perfectly.
type point struct {
	policy    string
	strategy  string
	dice      uint64 // other ones, other random choices
	oracle    oracle
	events    bool // engines publish cache events
	nodes     int
	share     Share
	staleness time.Duration
	mode      mode
}

// effective maps points that cannot differ to one.
func (p point) effective() point {
	hears := p.nodes > 1 && p.staleness != Never && !deaf[p.strategy]
	prefixes := hears && p.share.prefixes() && !blind[p.strategy]
	loads := hears && p.share.loads() && !loners[p.strategy]
	switch {
	case prefixes && loads:
	case prefixes:
		p.share = SharePrefix
	case loads:
		p.share = ShareLoad
	default:
		p.share, p.staleness = ShareNone, Never
	}
	return p
}

func (p point) shares() bool { return p.nodes > 1 && p.staleness != Never && p.share != ShareNone }

// with is the run with another number of nodes.
func (p point) with(nodes int) point {
	p.nodes = nodes
	return p
}

// fleet returns the number of nodes and the staleness that routers start with.
func (p point) fleet() (nodes int, staleness time.Duration) {
	switch {
	case p.nodes == 1 || p.oracle.load:
		return 1, 0
	case !p.shares():
		return p.nodes, MaxStaleness
	}
	return p.nodes, p.staleness
}

func (c *Config) points() []point {
	var out []point
	for _, policy := range c.Policies {
		p, _ := newPoint(policy) // completed has checked it
		for _, nodes := range c.Nodes {
			for _, share := range c.Share {
				for _, staleness := range c.Staleness {
					for _, p.mode = range c.modes() {
						p.nodes, p.share, p.staleness = nodes, share, staleness
						out = append(out, p)
					}
				}
			}
		}
	}
	return out
}
