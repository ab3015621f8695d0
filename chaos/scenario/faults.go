package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/chaos/fleet"
)

// reach is which members a fault names: how many groups, the word between them, and the usage.
type reach struct {
	groups       int
	joint, usage string
}

var (
	toFleet   = reach{}
	toNodes   = reach{1, "", " NODE,..."}
	toEngines = reach{1, "", " ENGINE,..."}
	toPair    = reach{2, "|", " NODE,... | NODE,..."}
	toWay     = reach{2, ">", " MEMBER,... > MEMBER,..."} // from the first group to the second
)

// lasting is the end of a fault's usage.
type lasting string

const (
	atOnce  lasting = ""                // no end; "for" is refused
	mayEnd  lasting = " [for DURATION]" // without an end it lasts until all faults end
	mustEnd lasting = " for DURATION"
)

// spec describes a fault or operation, which world.inflict carries out.
type spec struct {
	name   string
	to     reach
	lasts  lasting
	help   string
	needs  string // see fleet.Supports and faultNewer; "": nothing
	params []paramSpec
}

type paramSpec struct {
	name, def string
	check     func(string) error
}

var linkParams = []paramSpec{
	{"delay", "0s", isDuration}, {"jitter", "0s", isDuration}, {"loss", "0", isShare},
	{"duplicate", "0", isShare}, {"reorder", "0", isShare}, {"rate", "0", isCount},
}

var specs = []spec{
	{"kill", toNodes, mayEnd, "SIGKILL to the node; started again at the end", "", nil},
	{"start", toNodes, atOnce, "starts a dead node", "", nil},
	{"stop", toNodes, mayEnd, "SIGTERM to the node, waits for its exit as a service manager does; started again at the end", "", nil},
	{"roll", toNodes, atOnce, "each node in turn: SIGTERM, waits for its exit, starts it, waits until it is ready and the balancer sends to it", "",
		[]paramSpec{{"pause", "0s", isDuration}}},
	{"pause", toNodes, mustEnd, "SIGSTOP to the node; SIGCONT at the end", "", nil},
	{"partition", toPair, mayEnd, "drops all packets between two groups of nodes", fleet.FaultLinks, nil},
	{"link", toWay, mayEnd, "harms packets in one direction; with loss=1 packets pass the other way only", fleet.FaultLinks, linkParams},
	{"reset", toPair, atOnce, "resets every TCP connection between two groups at both ends", fleet.FaultLinks, nil},
	{"fill-disk", toNodes, mustEnd, "writes to the node's files fail: no space left", fleet.FaultInstrumented, nil},
	{"hang-disk", toNodes, mustEnd, "writes and syncs of the node's files block", fleet.FaultInstrumented, nil},
	{"slow-disk", toNodes, mustEnd, "delays every write and sync of the node's files", fleet.FaultInstrumented, []paramSpec{{"by", "300ms", isDuration}}},
	{"clock", toNodes, atOnce, "moves the node's wall clock", fleet.FaultInstrumented, []paramSpec{{"step", "5s", isStep}}},
	{"expire", toNodes, mustEnd, "the node's gossip certificate expires after that time; renewed at the end", "", []paramSpec{{"in", "1s", isDuration}}},
	{"upgrade", toNodes, atOnce, "each node in turn: stopped, and started with the next release", faultNewer, nil},
	{"crash", toEngines, mayEnd, "ends the engine; started with an empty cache at the end", "", nil},
	{"hang", toEngines, mustEnd, "the engine accepts requests and does not answer", "", nil},
	{"slow", toEngines, mustEnd, "every step of the engine takes that many times as long", "", []paramSpec{{"factor", "8", isFactor}}},
	{"amnesia", toEngines, atOnce, "empties the engine's cache; the engine runs on", "", nil},
	{"overload", toEngines, mustEnd, "the engine answers 503", "", nil},
	{"break", toEngines, mustEnd, "the engine resets that many connections, each after that many bytes of an answer", "",
		[]paramSpec{{"count", "5", isCount}, {"after", "200", isCount}}},
	{"lie", toEngines, mustEnd, "the engine reports its prompt tokens multiplied by the factor, and uncached tokens as cached", "", []paramSpec{{"factor", "3", isFactor}}},
	{"mute", toEngines, mustEnd, "the engine's stream of cache events brings nothing; its connections stay open, and end with the fault", "", nil},
	{"lose", toEngines, mustEnd, "a share of the engine's batches of cache events does not come, except by a replay", "", []paramSpec{{"share", "0.2", isShare}}},
	{"renew", toEngines, atOnce, "the engine's cache and its stream of cache events begin anew, as with a new process; requests continue", "", nil},
	{"drain", toEngines, mayEnd, "an operator drains the engine through a random node; resumed at the end", "", nil},
	{"remove", toEngines, mayEnd, "an operator removes the engine through a random node; added again at the end", "", nil},
	{"flood", toFleet, mustEnd, "sends that many requests per second with one long common prefix", "",
		[]paramSpec{{"rate", "20", isFactor}, {"tokens", "4096", isCount}}},
	{"malformed", toNodes, mustEnd, "strangers connect to the node's gossip, raft, data and admin ports and send malformed bytes", "",
		[]paramSpec{{"rate", "50", isFactor}}},
}

const faultNewer = "newer"

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

type Fault struct {
	Usage string `json:"usage"`
	Does  string `json:"does"`
}

func Faults() (out []Fault) {
	for i := range specs {
		out = append(out, Fault{specs[i].usage(), specs[i].help})
	}
	return out
}

func (s *spec) join(groups [][]string) string {
	var texts []string
	for _, g := range groups {
		texts = append(texts, strings.Join(g, ","))
	}
	return strings.Join(texts, " "+s.to.joint+" ")
}

func (s *spec) usage() string {
	out := s.name + s.to.usage
	for _, p := range s.params {
		out += " [" + p.name + "=" + p.def + "]"
	}
	return out + string(s.lasts)
}

func (s *spec) check(e *Event) error {
	switch {
	case len(e.Groups) != s.to.groups || slices.ContainsFunc(e.Groups, func(g []string) bool { return len(g) == 0 }):
		return fmt.Errorf("%s: write %s", s.name, s.usage())
	case e.For > 0 && s.lasts == atOnce:
		return fmt.Errorf("%s: has no duration: leave out for %s", s.name, e.For)
	case e.For == 0 && s.lasts == mustEnd:
		return fmt.Errorf("%s: needs a duration: write %s", s.name, s.usage())
	}
	for i, p := range e.Params {
		known := slices.IndexFunc(s.params, func(k paramSpec) bool { return k.name == p.Name })
		if known < 0 {
			return fmt.Errorf("%s: has no setting %q: write %s", s.name, p.Name, s.usage())
		}
		if slices.ContainsFunc(e.Params[:i], func(q Param) bool { return q.Name == p.Name }) {
			return fmt.Errorf("%s: %s is given twice: write it once", s.name, p.Name)
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
				return fmt.Errorf("%w: %s: %q is not a member: write one of %s", ErrSchedule, e, name, strings.Join(may, ", "))
			}
		}
	}
	return nil
}

func (s Schedule) needs() (words []string) {
	for _, e := range s {
		if need := specOf(e.Kind).needs; need != "" {
			words = append(words, need)
		}
	}
	return words
}

func isDuration(v string) error {
	_, err := parseTime(v)
	return err
}

func isStep(v string) error {
	if d, err := time.ParseDuration(v); err != nil || d == 0 || d.Abs() > maxTime {
		return errors.New("write a duration, forward or back, as in -5s")
	}
	return nil
}

func isCount(v string) error {
	if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 {
		return errors.New("write a whole number")
	}
	return nil
}

var (
	isShare  = number("write a share from 0 to 1", func(x float64) bool { return x >= 0 && x <= 1 })
	isFactor = number("write a number above 0, at most 1000000", func(x float64) bool { return x > 0 && x <= 1e6 })
)

func number(want string, ok func(float64) bool) func(string) error {
	return func(v string) error {
		if x, err := strconv.ParseFloat(v, 64); err != nil || !ok(x) {
			return errors.New(want)
		}
		return nil
	}
}
