package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"grapevine/chaos/fleet"
)

// Scenario is a kind of run: a fleet, traffic, and a schedule that follows from a seed.
type Scenario struct {
	Name   string
	Proves string
	// Must names the invariants that a run must exercise in order to pass.
	Must       []string
	Nodes      int
	LeastNodes int
	Engines    int
	Duration   time.Duration // of the traffic
	Load       Load
	HAProxy    bool
	Needs      []string // beyond the needs of its schedule; see fleet.Supports

	generate func(*dice) Schedule
}

const half = 36 * time.Second // usual length: even load, 13 s of faults, and the time after

var answered = []string{oneOutcome.Name, noForeignBytes.Name, streamsSurvive.Name, requestsAnswered.Name}

func and(more ...string) []string { return append(slices.Clone(answered), more...) }

var catalogue = []Scenario{
	{
		Name: "router-loss", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(hitRateRecovers.Name, readyIsTrue.Name),
		Proves: "a router is killed: no request fails that was not being answered by it, and the others hit as much from 2 s after",
		generate: func(d *dice) Schedule {
			at, _ := d.part(0, 1)
			return Schedule{event(at, 9*time.Second, "kill %s", d.node())}
		},
	},
	{
		Name: "leader-loss", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(membershipKept.Name, oneLeader.Name),
		Proves: "the node that leads the agreement is killed, twice: another leads, nothing that was confirmed is lost, traffic does not notice",
		generate: func(d *dice) (s Schedule) {
			for i := range 2 {
				at, length := d.part(i, 2)
				s = append(s, event(at, length-time.Second, "kill leader"))
			}
			return s
		},
	},
	{
		Name: "majority-loss", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(membershipKept.Name),
		Proves: "most voters are killed: what is left routes on and refuses changes within seconds, and all is back with them",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "kill leader,follower")}
		},
	},
	{
		Name: "rolling-restart", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(readyIsTrue.Name),
		Proves: "every router is stopped in order and started again, one after the other: no request fails, no answer is cut",
		generate: func(d *dice) Schedule {
			at, _ := d.part(0, 1)
			return Schedule{event(at, 0, "roll %s", strings.Join(d.some(d.nodes, len(d.nodes)), ","))}
		},
	},
	{
		Name: "router-pause", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(membershipKept.Name),
		Proves: "a router stands still and goes on: what it held up ends as if nothing had been, and it is told what it missed",
		generate: func(d *dice) (s Schedule) {
			for i := range 2 {
				at, length := d.part(i, 2)
				s = append(s, event(at, length-time.Second, "pause %s", []string{d.node(), LeaderName}[i]))
			}
			return s
		},
	},
	{
		Name: "partition-heal", Nodes: 4, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, membershipKept.Name, oneLeader.Name),
		Proves: "the routers are cut in two: both parts serve, one of them agrees, and when they meet again all know the same",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			order := d.some(d.nodes, len(d.nodes))
			cut := 1 + d.IntN(len(order)-1)
			return Schedule{event(at, length, "partition %s | %s", strings.Join(order[:cut], ","), strings.Join(order[cut:], ","))}
		},
	},
	{
		Name: "asymmetric-partition", Nodes: 4, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, membershipKept.Name, oneLeader.Name),
		Proves: "packets pass one way only between some routers: the same, although each side takes the other for something else",
		generate: func(d *dice) (s Schedule) {
			at, length := d.part(0, 2)
			order := d.some(d.nodes, len(d.nodes))
			s = append(s, event(at, length, "link %s > %s loss=1", order[0], strings.Join(order[1:], ",")))
			at, length = d.part(1, 2)
			return append(s, event(at, length, "link %s > %s loss=1", strings.Join(order[:2], ","), strings.Join(order[2:], ",")))
		},
	},
	{
		Name: "engine-loss", Nodes: 3, LeastNodes: 2, Engines: 4, Duration: 42 * time.Second, Must: and(removedStayQuiet.Name, hitRateRecovers.Name),
		Proves: "an engine dies, another hangs: only answers that they had begun are lost, and nobody sends there any more",
		generate: func(d *dice) (s Schedule) {
			who := d.some(d.engines, 2)
			at, length := d.part(0, 2)
			s = append(s, event(at, length, "crash %s", who[0]))
			at, length = d.part(1, 2)
			return append(s, event(at, length, "hang %s", who[1]))
		},
	},
	{
		Name: "engine-amnesia", Nodes: 3, LeastNodes: 2, Engines: 4, Duration: half, Must: and(hitRateRecovers.Name),
		Proves: "an engine loses its cache, another is restarted: the routers notice, and conversations are hits again from the next turn on",
		generate: func(d *dice) Schedule {
			who := d.some(d.engines, 2)
			first, _ := d.part(0, 2)
			second, _ := d.part(1, 2)
			return Schedule{event(first, 0, "amnesia %s", who[0]), event(second, time.Second, "crash %s", who[1])}
		},
	},
	{
		Name: "engine-trouble", Nodes: 3, LeastNodes: 2, Engines: 4, Duration: half, Must: answered,
		Proves: "an engine is slow, one answers 503, one breaks off answers: requests go elsewhere, or end with an error event if it is too late for that",
		generate: func(d *dice) Schedule {
			who := d.some(d.engines, 3)
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "slow %s factor=%d", who[0], 4+d.IntN(16)), event(at, length/2, "overload %s", who[1]),
				event(at+round(length/2), length/2, "break %s count=%d after=%d", who[2], 3+d.IntN(10), 300+d.IntN(2000))}
		},
	},
	{
		Name: "lying-engine", Nodes: 3, LeastNodes: 2, Engines: 4, Duration: half, Must: answered,
		Proves: "an engine reports nonsense about tokens: nothing but its own hits suffers",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "lie %s factor=%v", d.engine(), []string{"0.1", "0.5", "3", "50"}[d.IntN(4)])}
		},
	},
	{
		Name: "membership-churn", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(removedStayQuiet.Name, membershipKept.Name),
		Proves: "engines are drained, removed and come back through any node while traffic runs: nothing goes where it must not, nothing fails",
		generate: func(d *dice) Schedule {
			who := d.some(d.engines, 2)
			at, length := d.part(0, 1)
			return Schedule{event(at, length/2, "drain %s", who[0]), event(at+round(length/4), length/2, "remove %s", who[1])}
		},
	},
	{
		Name: "hot-prefix", Nodes: 3, LeastNodes: 2, Engines: 4, Duration: half, Must: and(countsReturn.Name, hitRateRecovers.Name),
		Proves: "everybody asks about one thing: it is spread, the rest is served as before, and counts return to zero",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "flood rate=%d tokens=%d", 20+d.IntN(20), 2048+1024*d.IntN(4))}
		},
	},
	{
		Name: "slow-disk", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(membershipKept.Name), Needs: []string{fleet.FaultInstrumented},
		Proves: "the leader's disk is slow, then a voter's hangs: the fleet agrees on, or says that it cannot, and traffic does not notice",
		generate: func(d *dice) (s Schedule) {
			at, length := d.part(0, 2)
			s = append(s, event(at, length, "slow-disk leader by=%dms", 100+100*d.IntN(8)))
			at, length = d.part(1, 2)
			return append(s, event(at, length, "hang-disk %s", []string{LeaderName, FollowerName}[d.IntN(2)]))
		},
	},
	{
		Name: "full-disk", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(membershipKept.Name), Needs: []string{fleet.FaultInstrumented},
		Proves: "the disks of the leader and then of another are full: the same",
		generate: func(d *dice) (s Schedule) {
			for i := range 2 {
				at, length := d.part(i, 2)
				s = append(s, event(at, length, "fill-disk %s", []string{LeaderName, FollowerName}[i]))
			}
			return s
		},
	},
	{
		Name: "nlb-drain", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(readyIsTrue.Name), HAProxy: true, Needs: []string{fleet.FaultHAProxy},
		Load:   Load{KeepAlive: 0.7, Long: 0.12, LongOutput: 900},
		Proves: "the same behind a balancer that only sees readiness, with connections that are kept and answers that take seconds",
		generate: func(d *dice) Schedule {
			at, _ := d.part(0, 1)
			return Schedule{event(at, 0, "roll %s pause=1s", strings.Join(d.some(d.nodes, len(d.nodes)), ","))}
		},
	},
	{
		Name: "packet-loss", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, membershipKept.Name),
		Proves: "every link loses, delays, doubles and reorders packets: all is slower and nothing is wrong",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "link * > * loss=%.2f delay=%dms jitter=%dms duplicate=0.02 reorder=0.05", 0.01+0.01*float64(d.IntN(4)), 2+d.IntN(10), 1+d.IntN(10))}
		},
	},
	{
		Name: "reset-links", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, membershipKept.Name),
		Proves: "all connections between routers are reset again and again, and their links are slow: they find each other again, and miss nothing",
		generate: func(d *dice) (s Schedule) {
			at, length := d.part(0, 1)
			s = append(s, event(at, length, "link %s > %s rate=%d", d.node(), fleet.Everybody, 40_000+d.IntN(100_000)))
			for i := range 4 {
				at, _ := d.part(i, 4)
				order := d.some(d.nodes, len(d.nodes))
				s = append(s, event(at, 0, "reset %s | %s", order[0], strings.Join(order[1:], ",")))
			}
			return s
		},
	},
	{
		Name: "clock-step", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, hitRateRecovers.Name),
		Proves: "the wall clock of a router is set forward and back by seconds to minutes: what all know stays the same",
		generate: func(d *dice) (s Schedule) {
			who, by := d.node(), time.Duration(2+d.IntN(120))*time.Second
			for i, step := range []time.Duration{by, -2 * by, by} {
				at, _ := d.part(i, 3)
				s = append(s, event(at, 0, "clock %s step=%v", who, step))
			}
			return s
		},
	},
	{
		Name: "certificate-expiry", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name),
		Proves: "the certificate of a router ends while it runs, and is renewed: it serves on, and is one of the fleet again",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "expire %s in=1s", d.node())}
		},
	},
	{
		Name: "strangers", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: half, Must: and(treesConverge.Name, resourcesReturn.Name),
		Proves: "strangers talk nonsense to every port: nobody else notices, and nothing of them stays",
		generate: func(d *dice) Schedule {
			at, length := d.part(0, 1)
			return Schedule{event(at, length, "malformed %s rate=%d", strings.Join(d.nodes, ","), 20+d.IntN(60))}
		},
	},
	{
		Name: "upgrade", Nodes: 4, LeastNodes: 4, Engines: 4, Duration: 50 * time.Second, Must: and(treesConverge.Name, membershipKept.Name, readyIsTrue.Name), Needs: []string{faultNewer},
		Proves: "half of the fleet speaks the next version: all understand each other, and what the older do not know they pass over",
		generate: func(d *dice) Schedule {
			at, _ := d.part(0, 1)
			return Schedule{event(at, 0, "upgrade %s", strings.Join(d.some(d.nodes, len(d.nodes)/2), ","))}
		},
	},
	{
		// Short answers to short questions, so that two processors make half a thousand per second.
		Name: "endurance", Nodes: 3, LeastNodes: 3, Engines: 4, Duration: 75 * time.Second, Must: and(membershipKept.Name, enginesTold.Name, countsReturn.Name, resourcesReturn.Name),
		Load:     Load{Output: [2]int{8, 24}, Long: 0.01, LongOutput: 200, HeadBytes: 1024, Opening: [2]int{300, 2000}, KeepAlive: 0.7},
		Proves:   "made for --soak: routers and engines come and go around one router that lives through all of it: nothing is left unexplained, and nothing grows",
		generate: endurance,
	},
	{
		Name: "everything-at-once", Nodes: 4, LeastNodes: 3, Engines: 5, Duration: 75 * time.Second, Needs: []string{fleet.FaultLinks, fleet.FaultInstrumented},
		Must:     []string{oneOutcome.Name, noForeignBytes.Name, streamsSurvive.Name, requestsAnswered.Name, removedStayQuiet.Name, membershipKept.Name, oneLeader.Name, treesConverge.Name, countsReturn.Name, enginesTold.Name},
		Proves:   "faults of all kinds that leave a majority and most engines, over each other and in any order: every promise at once",
		generate: swarm,
	},
}

// endurance overlaps faults of every kind of member, but never ends the first node, so that its
// process shows whether resources grow over hours.
func endurance(d *dice) Schedule {
	var s Schedule
	others := d.nodes[1:]
	s = d.row(s, func() string {
		who := others[d.IntN(len(others))]
		return []string{"kill " + who, "kill " + who, "stop " + who, "pause " + d.node(), "malformed " + d.node() + " rate=30"}[d.IntN(5)]
	}, 3*time.Second)
	split := len(d.engines) / 2
	kinds := []string{"crash %s", "hang %s", "slow %s factor=10", "overload %s", "break %s count=5", "lie %s", "drain %s", "remove %s", "amnesia %s"}
	for _, own := range [][]string{d.engines[:split], d.engines[split:]} {
		s = d.row(s, func() string { return fmt.Sprintf(kinds[d.IntN(len(kinds))], own[d.IntN(len(own))]) }, 4*time.Second)
	}
	at, length := d.part(d.IntN(3), 3)
	return append(s, event(at, length, "flood rate=%d", 10+d.IntN(30)))
}

// swarm overlaps faults, with at most one node and two engines harmed at a time, so that the fleet
// can recover. It first draws which kinds occur, so that some runs have many of few kinds.
func swarm(d *dice) Schedule {
	var s Schedule
	s = d.row(s, d.nodeFaults(3+d.IntN(4)), 3*time.Second)
	// Each row has its own engines, so that the two are never the same.
	split := len(d.engines) / 2
	kinds := d.some([]string{"crash %s", "hang %s", "slow %s factor=10", "overload %s", "break %s count=5", "lie %s", "drain %s", "remove %s", "amnesia %s"}, 3+d.IntN(4))
	for _, own := range [][]string{d.engines[:split], d.engines[split:]} {
		s = d.row(s, func() string { return fmt.Sprintf(kinds[d.IntN(len(kinds))], own[d.IntN(len(own))]) }, 4*time.Second)
	}
	// Always includes these two: an engine taken out, and a flood.
	at, length := d.part(d.IntN(3), 3)
	s = append(s, event(at, round(length/3), []string{"drain %s", "remove %s"}[d.IntN(2)], d.engine()))
	at, length = d.part(d.IntN(3), 3)
	return append(s, event(at, length, "flood rate=%d", 5+d.IntN(15)))
}

// nodeFaults draws so many kinds of harm to one node, and returns a function that draws one of them
// with its node.
func (d *dice) nodeFaults(kinds int) func() string {
	alone := func(format string) func() string {
		return func() string {
			who := append(slices.Clone(d.nodes), LeaderName)
			return fmt.Sprintf(format, who[d.IntN(len(who))])
		}
	}
	apart := func(format string) func() string {
		return func() string {
			order := d.some(d.nodes, len(d.nodes))
			return fmt.Sprintf(format, order[0], strings.Join(order[1:], ","))
		}
	}
	all := []func() string{
		alone("kill %s"), alone("pause %s"), alone("stop %s"), alone("malformed %s rate=30"), alone("slow-disk %s by=300ms"), alone("hang-disk %s"), alone("fill-disk %s"),
		apart("partition %s | %s"), apart("link %s > %s loss=1"), apart("link %s > %s loss=0.2 delay=30ms jitter=30ms reorder=0.1"), apart("reset %s | %s"),
	}
	var some []func() string
	for _, i := range d.Perm(len(all))[:kinds] {
		some = append(some, all[i])
	}
	return func() string { return some[d.IntN(len(some))]() }
}

func (d *dice) row(s Schedule, draw func() string, rest time.Duration) Schedule {
	for at := d.from + time.Duration(d.Int64N(int64(rest))); at < d.to-3*time.Second; {
		length := min(2*time.Second+time.Duration(d.Int64N(int64(7*time.Second))), d.to-at)
		line := draw()
		lasts := round(length)
		if specOf(strings.Fields(line)[0]).lasts == atOnce {
			lasts = 0
		}
		s = append(s, event(round(at), lasts, "%s", line))
		// A node that returns needs time to be ready before the next fault.
		at += length + 4*time.Second + time.Duration(d.Int64N(int64(rest)))
	}
	return s
}

func find(name string) (*Scenario, bool) {
	for i := range catalogue {
		if catalogue[i].Name == name {
			return &catalogue[i], true
		}
	}
	return nil, false
}

// Names returns the names of the scenarios in order of listing.
func Names() (out []string) {
	for i := range catalogue {
		out = append(out, catalogue[i].Name)
	}
	return out
}

// List returns all scenarios. The caller owns the slice.
func List() []Scenario { return slices.Clone(catalogue) }

// Sample is the schedule of a scenario for a seed.
func Sample(name string, seed uint64) (Schedule, error) {
	s, ok := find(name)
	if !ok {
		return nil, fmt.Errorf("%w: no scenario %q", ErrConfig, name)
	}
	return s.generate(newDice(seed, s.Nodes, s.Engines, s.Duration)).sorted(), nil
}
