// Package scenario breaks a fleet of real processes by a schedule that follows from a seed, while
// clients hold conversations, and checks the fleet's promises. It reports which promises a run
// could not have broken, and which faults this machine cannot produce.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
)

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("chaos")

// Config needs Scenario and, for Run, Binary.
type Config struct {
	Scenario string
	Seed     uint64
	Nodes    int           // default: the scenario's
	Duration time.Duration // of the traffic; default: the scenario's
	Schedule Schedule      // replaces the seed's schedule; its last event must end before the traffic does
	// Soak makes one run of that length, repeating the schedule with the next seed each time.
	Soak time.Duration
	Rate float64 // conversations begun per second; default: the scenario's
	// Loopback runs all members in this machine's network, where links cannot be broken, instead of
	// network namespaces.
	Loopback bool
	// LeaveOut names invariants that a busy machine cannot measure.
	LeaveOut []string

	Binary string   // the program grapevine; no default
	Newer  string   // grapevine of the next release, for upgrades; without it such schedules are left out
	Env    []string // extra environment of the nodes
	// Keep is the directory for logs, configurations and histories; "" keeps none.
	Keep string
	// Progress, if not nil, is called a few times per second and must not block.
	Progress func(Progress)
	Log      zerolog.Logger

	command string // repeats the run; set by checked
}

type Progress struct {
	Phase           string
	Elapsed, Length time.Duration // of the traffic
	Attempts        int
	Failed          int
}

const (
	phaseStart   = "starting"
	phaseTraffic = "traffic"
	phaseQuiet   = "quiet"
)

// Even load precedes and follows the faults, to compare hit rates and resources.
const (
	warmUp   = 4 * time.Second
	leadTime = 12 * time.Second
	tailTime = 11 * time.Second // least time from the end of the last event to the end of traffic
)

const (
	startWithin = 60 * time.Second
	readyWithin = 30 * time.Second
)

// Shorter than the defaults, so that a run takes half a minute.
const (
	drainGrace = 1500 * time.Millisecond
	drainLimit = 15 * time.Second
	firstByte  = 6 * time.Second // the routers' timeout for the first byte of a stream
	wholeByte  = 10 * time.Second
)

func settings() map[string]any {
	return map[string]any{
		"log_level": "info", "drain_grace": drainGrace.String(), "drain_close": "500ms", "drain_timeout": drainLimit.String(), "slow_start": "5s",
		"stream_first_byte_timeout": firstByte.String(), "first_byte_timeout": wholeByte.String(), "idle_timeout": "8s", "header_hold": "5s",
	}
}

const modelName = "emulated-8b"

// engineConfig prefills instantly, so that knowledge decides the routing, and decodes slowly, so
// that faults hit running answers.
func engineConfig() engine.ServerConfig {
	return engine.ServerConfig{
		Config: engine.Config{KVTokens: 4_000_000, BlockTokens: 64, MaxRunning: 256, PrefillRate: 4_000_000, ChunkTokens: 16_384, DecodeStep: 5 * time.Millisecond},
		Models: []string{modelName}, TokensPerChunk: 4,
	}
}

func (c Config) checked() (Config, *Scenario, error) {
	fail := func(format string, args ...any) (Config, *Scenario, error) {
		return c, nil, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
	}
	s, ok := find(c.Scenario)
	if !ok {
		return fail("no scenario %q: grapevine-lab chaos list shows them", c.Scenario)
	}
	if c.Nodes = cmp.Or(c.Nodes, s.Nodes); c.Nodes < s.LeastNodes || c.Nodes > maxNodes {
		return fail("%s with %d nodes: give %d to %d", s.Name, c.Nodes, s.LeastNodes, maxNodes)
	}
	given, scheduled := c.Duration, c.Schedule != nil
	c.Duration = cmp.Or(given, s.Duration)
	if least := leadTime + tailTime + 4*time.Second; c.Duration < least || c.Duration > maxTime {
		return fail("%v of traffic: give %v to %v", c.Duration, least, maxTime)
	}
	if !scheduled {
		c.Schedule = s.schedule(&c)
	}
	for _, name := range c.LeaveOut {
		if !slices.ContainsFunc(Invariants(), func(i Invariant) bool { return i.Name == name }) {
			return fail("no promise %q to leave out: grapevine-lab chaos list shows them", name)
		}
	}
	if given == 0 {
		c.Duration = max(c.Duration, c.Soak)
	}
	if err := c.Schedule.checkMembers(fleet.Names("node", c.Nodes), fleet.Names("engine", s.Engines)); err != nil {
		return c, nil, err
	}
	if end := c.Schedule.End() + tailTime; end > c.Duration {
		if given != 0 {
			return fail("the schedule ends %v before the traffic: give --duration %v or more", c.Duration-c.Schedule.End(), end)
		}
		c.Duration = end
	}
	if left, err := os.ReadDir(c.Keep); c.Keep != "" && err == nil && len(left) > 0 {
		// Nodes would use the data of another run.
		return fail("%s is not empty: name another directory to keep things in, or empty it", c.Keep)
	}
	c.command = c.commandLine(scheduled, given != 0 || c.Duration != max(s.Duration, c.Soak))
	return c, s, nil
}

// commandLine repeats the run, with the schedule and the duration if they were given.
func (c *Config) commandLine(schedule, duration bool) string {
	line := fmt.Sprintf("grapevine-lab chaos run %s --seed %d --nodes %d", c.Scenario, c.Seed, c.Nodes)
	add := func(given bool, format string, args ...any) {
		if given {
			line += " --" + fmt.Sprintf(format, args...)
		}
	}
	add(schedule, "schedule FILE")
	add(c.Soak > 0, "soak %v", c.Soak)
	for _, name := range c.LeaveOut {
		add(true, "leave-out %s", name)
	}
	add(c.Rate > 0, "rate %v", c.Rate)
	add(c.Loopback, "loopback")
	add(duration, "duration %v", c.Duration)
	beside, err := fleet.FindRouter("")
	add(c.Binary != "" && (err != nil || c.Binary != beside), "router %s", c.Binary)
	return line
}

const maxNodes = 16

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

// leftOut returns why the run cannot be made here, with remedies.
func leftOut(s *Scenario, c *Config) (missing []string) {
	for _, w := range needs(s, c) {
		switch {
		case w == faultNewer && c.Newer == "":
			missing = append(missing, "upgrade: no program of a newer release: build one by make build-newer and give --newer bin/grapevine-newer")
		case w == faultNewer:
		case w == fleet.FaultLinks && c.Loopback:
			missing = append(missing, "links cannot be broken on the loopback interface: run it without --loopback")
		default:
			if err := fleet.Supports(w, c.Binary); err != nil {
				missing = append(missing, err.Error())
			} else if w == fleet.FaultLinks && !fleet.Isolated() {
				missing = append(missing, "links cannot be broken: this process has no network of its own")
			}
		}
	}
	return missing
}

// Check returns the error that Run would return about the config.
func (c Config) Check() error {
	_, _, err := c.checked()
	return err
}

func needs(s *Scenario, c *Config) []string {
	words := append(c.Schedule.needs(), s.Needs...)
	slices.Sort(words)
	return slices.Compact(words)
}

// Run plays and judges a scenario. Violations are in the report; an error, also ctx's, means that
// there is no result.
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
