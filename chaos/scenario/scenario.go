// Package scenario breaks a fleet of real processes on purpose, by a schedule that follows from a seed, while clients hold conversations through
// it, and holds what was seen to what the fleet promises.
//
// It breaks nothing outside the fleet that it starts, and it says of every promise whether the run could have broken it at all. What cannot
// be done on a machine is named as left out. How a fleet is made and harmed is chaos/fleet's; here is what is done when, what clients and
// operators do meanwhile, who looks, and what counts as a violation.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/engine"
	"grapevine/chaos/fleet"
)

// ErrConfig is wrapped by every error about how a run was asked for.
var ErrConfig = errors.New("chaos")

// Config says what to run. Scenario and, to run it, Binary have no default.
type Config struct {
	Scenario string // one of Names
	Seed     uint64
	Nodes    int           // default: the scenario's
	Duration time.Duration // of the traffic; default: the scenario's
	Schedule Schedule      // in place of the one that follows from the seed; its last event must end before the traffic does
	// Soak makes one run of that length: the scenario's schedule again and again, each time with the next seed.
	Soak time.Duration
	Rate float64 // conversations begun a second; default: the scenario's
	// Loopback puts everything into the network of this machine, where links cannot be broken; else every member has a namespace of its own
	// wherever that can be had.
	Loopback bool
	// LeaveOut are invariants that the run is not held to, by name: where the machine is too busy for what they measure.
	LeaveOut []string

	Binary string   // the program grapevine; it has no default
	Newer  string   // grapevine of the next release, for upgrades; "": such schedules are left out
	Env    []string // more of the environment of the nodes
	// Keep is where logs, configurations and histories stay; "": nowhere.
	Keep string
	// Progress, if not nil, is told a few times a second how far it is. It must not block.
	Progress func(Progress)
	Log      zerolog.Logger

	command string // that repeats the run; checked makes it
}

// Progress is how far a run has come.
type Progress struct {
	Phase           string
	Elapsed, Length time.Duration // of the traffic
	Attempts        int
	Failed          int
}

// Phases of a run.
const (
	phaseStart   = "starting"
	phaseTraffic = "traffic"
	phaseQuiet   = "quiet"
)

// How a run is laid out: even load before anything happens, for the hit rate and the resources before; and after all, for those after.
const (
	warmUp   = 4 * time.Second
	leadTime = 12 * time.Second // the first event, at the earliest
	tailTime = 11 * time.Second // from the end of the last event to the end of traffic, at least
)

// startWithin bounds the start of a fleet, readyWithin that of a node within a run, on a machine that is busy with everything else.
const (
	startWithin = 60 * time.Second
	readyWithin = 30 * time.Second
)

// The fleet's pace: faster than by default where seconds are waited for, so that a run takes half a minute.
const (
	drainGrace = 1500 * time.Millisecond
	drainLimit = 15 * time.Second
	firstByte  = 6 * time.Second  // the routers' patience for the first byte of a stream
	wholeByte  = 10 * time.Second // and of anything else
)

// settings are those of every node.
func settings() map[string]any {
	return map[string]any{
		"log_level": "info", "drain_grace": drainGrace.String(), "drain_close": "500ms", "drain_timeout": drainLimit.String(), "slow_start": "5s",
		"stream_first_byte_timeout": firstByte.String(), "first_byte_timeout": wholeByte.String(), "idle_timeout": "8s", "header_hold": "5s",
	}
}

// modelName is what the engines serve.
const modelName = "emulated-8b"

// engineConfig is an engine that computes prompts in no time, so that it is knowledge that decides where requests go and not queues which
// a busy machine makes up, and answers slowly enough for answers to be under way when something happens: 5 ms a token.
func engineConfig() engine.ServerConfig {
	return engine.ServerConfig{
		Config: engine.Config{KVTokens: 4_000_000, BlockTokens: 64, MaxRunning: 256, PrefillRate: 4_000_000, ChunkTokens: 16_384, DecodeStep: 5 * time.Millisecond},
		Models: []string{modelName}, TokensPerChunk: 4,
	}
}

// checked fills in defaults and makes the schedule.
func (c Config) checked() (Config, *Scenario, error) {
	s, ok := find(c.Scenario)
	if !ok {
		return c, nil, fmt.Errorf("%w: no scenario %q: grapevine-lab chaos list shows them", ErrConfig, c.Scenario)
	}
	if c.Nodes == 0 {
		c.Nodes = s.Nodes
	}
	if c.Nodes < s.LeastNodes || c.Nodes > maxNodes {
		return c, nil, fmt.Errorf("%w: %s with %d nodes: give %d to %d", ErrConfig, s.Name, c.Nodes, s.LeastNodes, maxNodes)
	}
	c.command = fmt.Sprintf("grapevine-lab chaos run %s --seed %d --nodes %d", c.Scenario, c.Seed, c.Nodes)
	given := c.Duration
	if c.Duration == 0 {
		c.Duration = s.Duration
	}
	if least := leadTime + tailTime + 4*time.Second; c.Duration < least || c.Duration > maxTime {
		return c, nil, fmt.Errorf("%w: %v of traffic: give %v to %v", ErrConfig, c.Duration, least, maxTime)
	}
	switch {
	case c.Schedule != nil:
		c.command += " --schedule FILE" // with the lines that the report shows
	default:
		c.Schedule = s.schedule(&c)
	}
	if c.Soak > 0 {
		c.command += fmt.Sprintf(" --soak %v", c.Soak)
	}
	for _, name := range c.LeaveOut {
		if !slices.ContainsFunc(invariants(), func(i Invariant) bool { return i.Name == name }) {
			return c, nil, fmt.Errorf("%w: no promise %q to leave out: grapevine-lab chaos list shows them", ErrConfig, name)
		}
		c.command += " --leave-out " + name
	}
	if c.Rate > 0 {
		c.command += fmt.Sprintf(" --rate %v", c.Rate)
	}
	if c.Loopback {
		c.command += " --loopback"
	}
	if given == 0 {
		c.Duration = max(c.Duration, c.Soak)
	}
	if err := c.Schedule.checkMembers(names("node", c.Nodes), names("engine", s.Engines)); err != nil {
		return c, nil, err
	}
	if end := c.Schedule.End() + tailTime; end > c.Duration {
		if given != 0 {
			return c, nil, fmt.Errorf("%w: the schedule ends %v before the traffic: give --duration %v or more", ErrConfig, c.Duration-c.Schedule.End(), end)
		}
		c.Duration = end
	}
	if left, err := os.ReadDir(c.Keep); c.Keep != "" && err == nil && len(left) > 0 {
		// Its nodes would go by what another run has left there.
		return c, nil, fmt.Errorf("%w: %s is not empty: name another directory to keep things in, or empty it", ErrConfig, c.Keep)
	}
	if given != 0 || c.Duration != max(s.Duration, c.Soak) {
		c.command += fmt.Sprintf(" --duration %v", c.Duration)
	}
	if beside, err := fleet.FindRouter(""); c.Binary != "" && (err != nil || c.Binary != beside) {
		c.command += " --router " + c.Binary
	}
	return c, s, nil
}

const maxNodes = 16

// schedule is what follows from the seed: once, or for as long as a soak takes.
func (s *Scenario) schedule(c *Config) (out Schedule) {
	rounds := max(1, int((c.Soak-leadTime-tailTime)/(c.Duration-leadTime)))
	for i := range rounds {
		for _, e := range s.generate(newDice(c.Seed+uint64(i), c.Nodes, s.Engines, c.Duration)) {
			e.At += time.Duration(i) * (c.Duration - leadTime)
			out = append(out, e)
		}
	}
	return out.sorted()
}

// names are node-0 and so on, as fleet calls them.
func names(what string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", what, i))
	}
	return out
}

// leftOut says why a schedule cannot be carried out here, for each thing that is missing.
func leftOut(s *Scenario, c *Config) (missing []string) {
	words := needs(s, c)
	links := slices.Contains(words, fleet.FaultLinks)
	if links && c.Loopback {
		return []string{"partition: there are no links to break on the loopback interface (--loopback)"}
	}
	for _, w := range words {
		if w == faultNewer {
			if c.Newer == "" {
				missing = append(missing, "upgrade: no program of a newer release was given (--newer)")
			}
			continue
		}
		check := fleet.Supports
		if w == fleet.FaultInstrumented {
			check = func(string) error { return fleet.Instrumented(c.Binary) }
		}
		if err := check(w); err != nil {
			missing = append(missing, err.Error())
		}
	}
	if links && len(missing) == 0 && !fleet.Isolated() {
		missing = append(missing, "partition: this process has no network of its own")
	}
	return missing
}

// WantsNetwork says whether a run is to be made in a process that fleet.Isolate has started: wherever there can be one.
func WantsNetwork(c Config) (bool, error) {
	c, _, err := c.checked()
	return err == nil && !c.Loopback && fleet.Supports(fleet.FaultLinks) == nil, err
}

// needs is all that a run asks of the machine, by the words of fleet.Supports.
func needs(s *Scenario, c *Config) []string {
	words := append(c.Schedule.needs(), s.Needs...)
	slices.Sort(words)
	return slices.Compact(words)
}

// LeaveOut is the report of a run that cannot be made here, for the reason given.
func LeaveOut(c Config, why error) (*Report, error) {
	c, s, err := c.checked()
	if err != nil {
		return nil, err
	}
	return skipped(&c, s, []string{why.Error()}), nil
}

// Run carries out one scenario: starts the fleet, plays traffic, does what the schedule says, waits for rest, takes everything down and judges.
// An error means that nothing can be said; violations are in the report. When ctx ends everything is taken down and its error returned.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg, s, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	if missing := leftOut(s, &cfg); len(missing) > 0 {
		return skipped(&cfg, s, missing), nil
	}
	r := &run{cfg: cfg, s: s, pace: pace{warmUp, leadTime, tailTime}}
	e, err := r.play(ctx)
	if err != nil {
		return nil, err
	}
	return r.report(e), nil
}
