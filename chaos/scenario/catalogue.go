package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"grapevine.example/chaos/fleet"
)

type Scenario struct {
	Name   string
	Proves string
	// Must names invariants that a run must exercise to pass, beyond answered.
	Must       []string
	Nodes      int
	LeastNodes int
	Engines    int
	Duration   time.Duration // of the traffic
	Load       Load
	HAProxy    bool
	Events     bool     // engines publish cache events
	Clients    []Client // of the clients file; none: there is no such file
	Queue      queueOf  // in which requests wait at the routers; zero: they do not wait there
	Needs      []string // beyond the needs of its schedule; see fleet.Supports

	events   string // see dice.script
	generate func(*dice) Schedule
}

const half = 36 * time.Second

var answered = []string{oneOutcome.Name, noForeignBytes.Name, streamsSurvive.Name, requestsAnswered.Name}

// What a run of hours must exercise, and its load of short answers, of which two processors make half a thousand per second.
var (
	lasts = []string{membershipKept.Name, departuresEnd.Name, countsReturn.Name, resourcesReturn.Name}
	brief = Load{Output: [2]int{8, 24}, Long: 0.01, LongOutput: 200, HeadBytes: 1024, Opening: [2]int{300, 2000}, KeepAlive: 0.7}
)

// withDefaults completes the entries.
var scenarios = []Scenario{
	{
		Name: "router-loss", Must: []string{hitRateRecovers.Name, readyIsTrue.Name}, events: "0-100 kill $node for 9s",
		Proves: "a router is killed: only answers that it had begun fail, and 2 s later the other routers hit caches as often as before",
	},
	{
		Name: "leader-loss", Must: []string{membershipKept.Name, oneLeader.Name}, events: "0-50 kill leader for all-1s; 50-100 kill leader for all-1s",
		Proves: "the raft leader is killed twice: another node leads, no confirmed change is lost, no request fails for it",
	},
	{
		Name: "majority-loss", Must: []string{membershipKept.Name}, events: "0-100 kill leader,follower for all",
		Proves: "most voters are killed: the rest routes on and refuses changes within seconds; changes work again when the voters return",
	},
	{
		Name: "rolling-restart", Must: []string{readyIsTrue.Name}, events: "0-100 roll $nodes",
		Proves: "every router is drained and restarted in turn: no request fails, no answer is cut",
	},
	{
		Name: "router-pause", Must: []string{membershipKept.Name}, events: "0-50 pause $node for all-1s; 50-100 pause leader for all-1s",
		Proves: "a router is stopped by SIGSTOP and continues: the requests that it held end normally, and it catches up with its peers",
	},
	{
		Name: "partition-heal", Nodes: 4, Must: []string{treesConverge.Name, membershipKept.Name, oneLeader.Name}, events: "0-100 partition $left | $right for all",
		Proves: "the routers are partitioned in two groups: both serve, only one accepts changes, and after healing all routers hold the same facts",
	},
	{
		Name: "asymmetric-partition", Nodes: 4, Must: []string{treesConverge.Name, membershipKept.Name, oneLeader.Name},
		events: "0-50 link $node > $others loss=1 for all; 50-100 link $two > $rest loss=1 for all",
		Proves: "packets between some routers pass in one direction only: the same as for partition-heal",
	},
	{
		Name: "engine-loss", LeastNodes: 2, Duration: 42 * time.Second, Must: []string{removedStayQuiet.Name, hitRateRecovers.Name},
		events: "0-50 crash $engine1 for all; 50-100 hang $engine2 for all",
		Proves: "an engine crashes, another hangs: only answers that they had begun fail, and no router sends requests there any more",
	},
	{
		Name: "engine-amnesia", LeastNodes: 2, Must: []string{hitRateRecovers.Name}, events: "0-50 amnesia $engine1; 50-100 crash $engine2 for 1s",
		Proves: "an engine loses its cache, another restarts: the routers notice, and conversations hit again from their next turn on",
	},
	{
		Name: "engine-trouble", LeastNodes: 2,
		events: "0-100 slow $engine1 factor={4-19} for all; 0-50 overload $engine2 for all; 50-100 break $engine3 count={3-12} after={300-2299} for all",
		Proves: "one engine is slow, one answers 503, one breaks off answers: requests go to other engines or, once answers have begun, end with an error event",
	},
	{
		Name: "lying-engine", LeastNodes: 2, events: "0-100 lie $engine1 factor={0.1|0.5|3|50} for all",
		Proves: "an engine reports wrong token counts: nothing suffers but its own hit rate",
	},
	{
		Name: "silent-events", Events: true, LeastNodes: 2, Duration: 48 * time.Second, Must: []string{cachesKnown.Name, hitRateRecovers.Name},
		events: "0-50 mute $engine1,$engine2 for 10s; 20-50 amnesia $engine1; 20-50 amnesia $engine3; 60-100 kill $node for 3s",
		Proves: "streams of cache events are silent for 10 s, caches are lost meanwhile, and a follower restarts: routers soon know exactly again what engines hold, and hits stay",
	},
	{
		Name: "lossy-events", Events: true, LeastNodes: 2, Duration: 48 * time.Second, Must: []string{cachesKnown.Name, hitRateRecovers.Name},
		events: "0-50 lose $engine1,$engine2 share={0.05|0.2} for 10s; 20-50 renew $engine3; 20-50 renew $engine1; 60-100 kill $node for 3s",
		Proves: "streams of cache events lose batches, an engine's stream begins anew with an empty cache, and a follower restarts: routers soon know exactly again what engines hold, and hits stay",
	},
	{
		Name: "membership-churn", Must: []string{removedStayQuiet.Name, membershipKept.Name}, events: "0-50 drain $engine1 for all; 25-75 remove $engine2 for all",
		Proves: "operators drain, remove and add engines through any node under traffic: no request goes to an engine that is out, none fails",
	},
	{
		Name: "hot-prefix", LeastNodes: 2, Must: []string{countsReturn.Name, hitRateRecovers.Name}, events: "0-100 flood rate={20-39} tokens={2048|3072|4096|5120} for all",
		Proves: "many requests share one prefix: it is spread over engines, other traffic is served as before, and counts return to zero",
	},
	{
		Name: "slow-disk", Must: []string{membershipKept.Name}, Needs: []string{fleet.FaultInstrumented},
		events: "0-50 slow-disk leader by={1-8}00ms for all; 50-100 hang-disk {leader|follower} for all",
		Proves: "the leader's disk is slow, then a voter's disk hangs: changes are confirmed or refused in time, and traffic does not notice",
	},
	{
		Name: "full-disk", Must: []string{membershipKept.Name}, Needs: []string{fleet.FaultInstrumented},
		events: "0-50 fill-disk leader for all; 50-100 fill-disk follower for all",
		Proves: "the leader's disk and then another voter's disk is full: the same as for slow-disk",
	},
	{
		Name: "nlb-drain", Must: []string{readyIsTrue.Name}, HAProxy: true, Needs: []string{fleet.FaultHAProxy},
		Load: Load{KeepAlive: 0.7, Long: 0.12, LongOutput: 900}, events: "0-100 roll $nodes pause=1s",
		Proves: "rolling-restart behind HAProxy, which sees readiness alone, with kept connections and answers of several seconds",
	},
	{
		Name: "packet-loss", Must: []string{treesConverge.Name, membershipKept.Name},
		events: "0-100 link * > * loss=0.0{1-4} delay={2-11}ms jitter={1-10}ms duplicate=0.02 reorder=0.05 for all",
		Proves: "every link loses, delays, duplicates and reorders packets: everything is slower and nothing fails",
	},
	{
		Name: "reset-links", Must: []string{treesConverge.Name, membershipKept.Name},
		events: "0-100 link $node > * rate={40000-139999} for all; 0-25 reset $node | $others; 25-50 reset $node | $others; 50-75 reset $node | $others; 75-100 reset $node | $others",
		Proves: "connections between routers are reset again and again, and one router's links are slow: the routers reconnect and miss no batch",
	},
	{
		Name: "clock-step", Must: []string{treesConverge.Name, hitRateRecovers.Name},
		Proves: "the wall clock of a router is set forward and back by seconds to minutes: the routers' facts stay the same",
		generate: func(d *dice) (s Schedule) {
			who, by := d.some(d.nodes, 1)[0], time.Duration(2+d.IntN(120))*time.Second
			for i, step := range []time.Duration{by, -2 * by, by} {
				at, _ := d.part(33*i, 33*(i+1))
				s = append(s, event(at, 0, "clock %s step=%v", who, step))
			}
			return s
		},
	},
	{
		Name: "certificate-expiry", Must: []string{treesConverge.Name}, events: "0-100 expire $node in=1s for all",
		Proves: "the certificate of a router expires while it runs, and is renewed: it serves on, and gossips with its peers again",
	},
	{
		Name: "strangers", Must: []string{treesConverge.Name, resourcesReturn.Name}, events: "0-100 malformed $nodes rate={20-79} for all",
		Proves: "strangers send malformed bytes to every port: no request fails, and no resource stays in use",
	},
	{
		Name: "upgrade", Nodes: 4, LeastNodes: 4, Duration: 50 * time.Second, Needs: []string{faultNewer}, events: "0-100 upgrade $half",
		Must:   []string{treesConverge.Name, membershipKept.Name, readyIsTrue.Name},
		Proves: "half of the fleet runs the next version: both versions understand each other, and the older skips what it does not know",
	},
	{
		Name: "crowded-queue", Duration: 50 * time.Second, Clients: crowded(24), Queue: queueOf{4, 96}, Load: beside, Needs: []string{fleet.FaultLinks},
		Must:   []string{shareKept.Name, limitKept.Name, placesKept.Name, waitsEnd.Name, countsReturn.Name},
		events: "0-45 kill $node for 8s; 55-100 partition $left | $right for all",
		Proves: "clients crowd a queue, one with ten times the requests of another, while a router is killed and the routers are partitioned: each gets its share and keeps its limit, and no request is lost in the queue",
	},
	{
		Name: "endurance", Duration: 75 * time.Second, Must: lasts, Load: brief,
		Proves:   "for --soak: routers and engines come and go around one router that never restarts: every failure is explained, and no resource grows",
		generate: endurance,
	},
	{
		// 80 places at engines for up to 580 requests that clients have under way.
		Name: "queue-endurance", Duration: 75 * time.Second, Clients: crowded(48), Queue: queueOf{20, 240}, Load: brief, generate: endurance,
		Must:   slices.Concat(lasts, []string{shareKept.Name, limitKept.Name, placesKept.Name, waitsEnd.Name}),
		Proves: "for --soak: endurance with clients that crowd a queue: the promises of crowded-queue hold, too, while routers and engines come and go",
	},
	{
		Name: "everything-at-once", Nodes: 4, Engines: 5, Duration: 75 * time.Second, Needs: []string{fleet.FaultLinks, fleet.FaultInstrumented},
		Must:     []string{removedStayQuiet.Name, membershipKept.Name, oneLeader.Name, treesConverge.Name, countsReturn.Name, departuresEnd.Name},
		Proves:   "faults of all kinds overlap in any order while a majority and most engines live: every promise holds at once",
		generate: swarm,
	},
}

func (s Scenario) withDefaults() Scenario {
	s.Must = slices.Concat(answered, s.Must)
	s.Nodes, s.LeastNodes, s.Engines, s.Duration = cmp.Or(s.Nodes, 3), cmp.Or(s.LeastNodes, 3), cmp.Or(s.Engines, 4), cmp.Or(s.Duration, half)
	if s.generate == nil {
		s.generate = func(d *dice) Schedule { return d.script(s.events) }
	}
	return s
}

// Faults for rows, in the words of dice.fill.
var (
	engineFaults = []string{
		"crash $engine1", "hang $engine1", "slow $engine1 factor=10", "overload $engine1", "break $engine1 count=5", "lie $engine1", "drain $engine1",
		"remove $engine1", "amnesia $engine1",
	}
	nodeFaults = []string{
		"kill $any", "pause $any", "stop $any", "malformed $any rate=30", "slow-disk $any by=300ms", "hang-disk $any", "fill-disk $any",
		"partition $node | $others", "link $node > $others loss=1", "link $node > $others loss=0.2 delay=30ms jitter=30ms reorder=0.1", "reset $node | $others",
	}
)

// endurance overlaps faults of all members but never ends the first node, which shows growth.
func endurance(d *dice) Schedule {
	s := d.row(nil, []string{"kill $later", "kill $later", "stop $later", "pause $node", "malformed $node rate=30"}, d.engines, 3*time.Second)
	return append(d.engineRows(s, engineFaults), d.once("flood rate={10-39}")...)
}

// swarm harms at most one node and two engines at a time, so that the fleet can recover.
func swarm(d *dice) Schedule {
	s := d.row(nil, d.some(nodeFaults, 3+d.IntN(4)), d.engines, 3*time.Second)
	s = d.engineRows(s, d.some(engineFaults, 3+d.IntN(4)))
	return slices.Concat(s, d.once("{drain|remove} $engine1"), d.once("flood rate={5-19}"))
}

// once has a fault in one third of the time.
func (d *dice) once(what string) Schedule {
	from := 33 * d.IntN(3)
	return d.script(fmt.Sprintf("%d-%d %s for all", from, from+33, what))
}

// engineRows gives two rows of faults different engines.
func (d *dice) engineRows(s Schedule, kinds []string) Schedule {
	split := len(d.engines) / 2
	s = d.row(s, kinds, d.engines[:split], 4*time.Second)
	return d.row(s, kinds, d.engines[split:], 4*time.Second)
}

func (d *dice) row(s Schedule, kinds, engines []string, rest time.Duration) Schedule {
	for at := d.from + time.Duration(d.Int64N(int64(rest))); at < d.to-3*time.Second; {
		length := min(2*time.Second+time.Duration(d.Int64N(int64(7*time.Second))), d.to-at)
		line := d.fill(kinds[d.IntN(len(kinds))], d.some(engines, len(engines)))
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

// List returns all scenarios; the caller owns the slice.
func List() (out []Scenario) {
	for _, s := range scenarios {
		out = append(out, s.withDefaults())
	}
	return out
}

func find(name string) (*Scenario, bool) {
	all := List()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return nil, false
	}
	return &all[i], true
}

func Names() (out []string) {
	for _, s := range scenarios {
		out = append(out, s.Name)
	}
	return out
}
