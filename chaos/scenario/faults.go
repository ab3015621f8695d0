package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine/chaos/fleet"
)

type reach int

const (
	toNobody reach = iota
	toNodes
	toEngines
	toPair
	toWay // two groups of any members: from the first to the second
)

type lasting int

const (
	atOnce  lasting = iota // no end; "for" is refused
	mayEnd                 // without an end it lasts until all faults end
	mustEnd                // "for" is required
	untilBack
)

type spec struct {
	name   string
	help   string
	to     reach
	lasts  lasting
	params []paramSpec
	needs  []string
	// operator: a regular operation, no fault.
	operator bool
}

type paramSpec struct {
	name, def string
	check     func(string) error
}

var linkParams = []paramSpec{
	{"delay", "0s", isDuration}, {"jitter", "0s", isDuration}, {"loss", "0", isShare}, {"duplicate", "0", isShare}, {"reorder", "0", isShare}, {"rate", "0", isCount},
}

var specs = []spec{
	{name: "kill", help: "SIGKILL; started again after the time", to: toNodes, lasts: untilBack},
	{name: "start", help: "starts a node that is dead", to: toNodes, operator: true},
	{name: "stop", help: "SIGTERM, and waits for its end as a service manager does; started again after the time", to: toNodes, lasts: untilBack, operator: true},
	{name: "roll", help: "each node in turn: SIGTERM, waits for its end, starts it, waits until it is ready and the balancer knows", to: toNodes, operator: true,
		params: []paramSpec{{"pause", "0s", isDuration}}},
	{name: "pause", help: "SIGSTOP, SIGCONT after the time", to: toNodes, lasts: mustEnd},
	{name: "partition", help: "no packet between two groups of nodes", to: toPair, lasts: mayEnd, needs: []string{fleet.FaultLinks}},
	{name: "link", help: "what happens to packets of one direction: loss 1 is a link that is open the other way only", to: toWay, lasts: mayEnd, params: linkParams,
		needs: []string{fleet.FaultLinks}},
	{name: "reset", help: "every TCP connection between two groups is reset at both ends", to: toPair, needs: []string{fleet.FaultLinks}},
	{name: "fill-disk", help: "the node's writes to files fail for want of room", to: toNodes, lasts: mustEnd, needs: []string{fleet.FaultInstrumented}},
	{name: "hang-disk", help: "the node's writes and syncs of files do not end", to: toNodes, lasts: mustEnd, needs: []string{fleet.FaultInstrumented}},
	{name: "slow-disk", help: "every write and sync of the node's files takes so much longer", to: toNodes, lasts: mustEnd, needs: []string{fleet.FaultInstrumented},
		params: []paramSpec{{"by", "300ms", isDuration}}},
	{name: "clock", help: "moves the node's wall clock", to: toNodes, params: []paramSpec{{"step", "5s", isStep}}, needs: []string{fleet.FaultInstrumented}},
	{name: "expire", help: "the node's certificate between nodes ends so soon; renewed after the time", to: toNodes, lasts: mustEnd, params: []paramSpec{{"in", "1s", isDuration}}},
	{name: "upgrade", help: "each node in turn: stopped, and started with the next release", to: toNodes, operator: true, needs: []string{faultNewer}},
	{name: "crash", help: "the engine is gone; started with an empty cache after the time", to: toEngines, lasts: untilBack},
	{name: "hang", help: "the engine takes requests and answers none", to: toEngines, lasts: mustEnd},
	{name: "slow", help: "every step of the engine takes so many times as long", to: toEngines, lasts: mustEnd, params: []paramSpec{{"factor", "8", isFactor}}},
	{name: "amnesia", help: "the engine's cache is empty; it goes on as if nothing had happened", to: toEngines},
	{name: "overload", help: "the engine answers 503", to: toEngines, lasts: mustEnd},
	{name: "break", help: "the engine resets so many connections, each after so many bytes of an answer", to: toEngines, lasts: mustEnd,
		params: []paramSpec{{"count", "5", isCount}, {"after", "200", isCount}}},
	{name: "lie", help: "the engine tells so many times its prompt tokens, and as cached those that were not", to: toEngines, lasts: mustEnd, params: []paramSpec{{"factor", "3", isFactor}}},
	{name: "drain", help: "an operator drains the engine, through any node; resumed after the time", to: toEngines, lasts: mayEnd, operator: true},
	{name: "remove", help: "an operator removes the engine, through any node; added again after the time", to: toEngines, lasts: mayEnd, operator: true},
	{name: "flood", help: "so many requests a second, all with one long beginning", to: toNobody, lasts: mustEnd, operator: true,
		params: []paramSpec{{"rate", "20", isFactor}, {"tokens", "4096", isCount}}},
	{name: "malformed", help: "strangers connect to the ports between nodes and to the data port, and talk nonsense", to: toNodes, lasts: mustEnd, params: []paramSpec{{"rate", "50", isFactor}}},
}

// Needs beyond those of package fleet.
const (
	faultNewer = "newer"
)

func findSpec(name string) (*spec, bool) {
	i := slices.IndexFunc(specs, func(s spec) bool { return s.name == name })
	if i < 0 {
		return nil, false
	}
	return &specs[i], true
}

func specOf(name string) *spec {
	s, ok := findSpec(name)
	if !ok {
		panic("scenario: no fault " + name)
	}
	return s
}

func faultNames() (out []string) {
	for _, s := range specs {
		out = append(out, s.name)
	}
	return out
}

// Faults lists all faults: usage and effect.
func Faults() (out [][2]string) {
	for i := range specs {
		out = append(out, [2]string{specs[i].usage(), specs[i].help})
	}
	return out
}

func (s *spec) joint() string {
	switch s.to {
	case toPair:
		return "|"
	case toWay:
		return ">"
	}
	return ""
}

func (s *spec) usage() string {
	out := s.name
	switch s.to {
	case toNodes:
		out += " NODE,..."
	case toEngines:
		out += " ENGINE,..."
	case toPair:
		out += " NODE,... | NODE,..."
	case toWay:
		out += " MEMBER,... > MEMBER,..."
	}
	for _, p := range s.params {
		out += " [" + p.name + "=" + p.def + "]"
	}
	switch s.lasts {
	case mustEnd:
		out += " for DURATION"
	case mayEnd, untilBack:
		out += " [for DURATION]"
	}
	return out
}

func (s *spec) check(e *Event) error {
	groups := map[reach]int{toNobody: 0, toNodes: 1, toEngines: 1, toPair: 2, toWay: 2}[s.to]
	switch {
	case len(e.Groups) != groups || slices.ContainsFunc(e.Groups, func(g []string) bool { return len(g) == 0 }):
		return fmt.Errorf("%s: write %s", s.name, s.usage())
	case e.For > 0 && s.lasts == atOnce:
		return fmt.Errorf("%s: has no end: leave out for %s", s.name, e.For)
	case e.For == 0 && s.lasts == mustEnd:
		return fmt.Errorf("%s: needs an end: write %s", s.name, s.usage())
	}
	for i, p := range e.Params {
		known := slices.IndexFunc(s.params, func(k paramSpec) bool { return k.name == p.Name })
		if known < 0 {
			return fmt.Errorf("%s: has no setting %q: write %s", s.name, p.Name, s.usage())
		}
		if slices.ContainsFunc(e.Params[:i], func(q Param) bool { return q.Name == p.Name }) {
			return fmt.Errorf("%s: %s stands twice: write it once", s.name, p.Name)
		}
		if err := s.params[known].check(p.Value); err != nil {
			return fmt.Errorf("%s: %s=%s: %w", s.name, p.Name, p.Value, err)
		}
	}
	return nil
}

func (s Schedule) checkMembers(nodes, engines []string) error {
	others := []string{fleet.BalancerName, fleet.ClientsName, fleet.Everybody}
	for _, e := range s {
		may := append(slices.Clone(nodes), LeaderName, FollowerName)
		switch specOf(e.Kind).to {
		case toEngines:
			may = engines
		case toWay:
			may = append(append(may, engines...), others...)
		}
		for _, name := range e.members() {
			if !slices.Contains(may, name) {
				return fmt.Errorf("%w: %s: no %q here: write of %s", ErrSchedule, e, name, strings.Join(may, ", "))
			}
		}
	}
	return nil
}

func (s Schedule) needs() (words []string) {
	for _, e := range s {
		words = append(words, specOf(e.Kind).needs...)
	}
	return words
}

func isDuration(v string) error {
	_, err := parseTime(v)
	return err
}

func isStep(v string) error {
	if d, err := time.ParseDuration(v); err != nil || d == 0 || d.Abs() > maxTime {
		return fmt.Errorf("write a duration, forward or back, as in -5s")
	}
	return nil
}

func isShare(v string) error {
	if x, err := strconv.ParseFloat(v, 64); err != nil || !(x >= 0 && x <= 1) {
		return fmt.Errorf("write a share from 0 to 1")
	}
	return nil
}

func isFactor(v string) error {
	if x, err := strconv.ParseFloat(v, 64); err != nil || !(x > 0 && x <= 1e6) {
		return fmt.Errorf("write a number above 0, at most 1000000")
	}
	return nil
}

func isCount(v string) error {
	if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 {
		return fmt.Errorf("write a whole number")
	}
	return nil
}
