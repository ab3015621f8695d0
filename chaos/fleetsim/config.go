// Package fleetsim runs a fleet in virtual time: a workload, routers that are the
// real policy and the real prefix tree, and emulated engines that are the real
// model of chaos/engine. An hour of traffic on sixteen engines takes seconds, and
// the same seed gives the same report to the last byte.
//
// It has no sockets, no wall clock and no parsing: what those cost is for live
// runs to measure (chaos/replay). DESIGN.md lists what is modelled and what not.
package fleetsim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"grapevine/chaos/engine"
	"grapevine/chaos/workload"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// Ingress says which node a request enters by.
type Ingress string

const (
	// Random: any node, drawn by the seed; what a plain L4 balancer does.
	Random Ingress = "random"
	// Sticky: all turns of a session at one node; single requests at random.
	Sticky Ingress = "sticky"
)

const (
	// DefaultBackends is used for traces; generated workloads bring their own.
	DefaultBackends = 16
	// MaxBackends and MaxNodes bound what a mistyped flag can allocate.
	MaxBackends = 4096
	MaxNodes    = 1024
)

// Config describes the runs: every combination of policy, number of nodes, share
// and staleness. Only Workload and Policies are required.
type Config struct {
	Workload workload.Workload
	// Options of the workload. Backends is filled in by Run.
	Options  workload.Options
	Policies []string
	Nodes    []int // nil: one node
	// Share and Staleness: what nodes tell each other, and how long after an event
	// all others know of it. nil: both, [DefaultStaleness].
	Share     []Share
	Staleness []time.Duration
	// Loss is the probability that what a node tells another of its placements in one
	// flush never arrives. It is not made good, though live nodes ask for it again.
	Loss float64
	// Partition cuts the fleet in two for a while.
	Partition Partition
	Backends  int // 0: what the workload is made for, else DefaultBackends
	// Engine is what every backend is. Zero fields: as EngineFor the workload.
	Engine  engine.Config
	Ingress Ingress // "": Random
	// Warmup is left out of the report. 0: what the workload says (nothing for
	// traces); negative: nothing.
	Warmup time.Duration
	// Policy and Tree are the routers' settings. Their seed, size of block, number
	// of nodes and extra strategies are filled in by Run.
	Policy policy.Config
	Tree   prefixtree.Config
	// HideCapacity keeps the engines' KV size from the routers, as with engines
	// that do not tell.
	HideCapacity bool
	// NoHot leaves out that hot prefixes are replicated on purpose; HotReplicas, if above 0, is on how many backends every one is, in place
	// of what the fleet would decide.
	NoHot       bool
	HotReplicas int
	// Extra makes a router's strategies beyond the built-in ones; called once per
	// router. nil: Baselines.
	Extra func() map[string]policy.Strategy
	// Parallel is how many runs go on at once; 0: GOMAXPROCS.
	Parallel int
	// Progress, if set, is told now and then how far a run is; by one goroutine at
	// a time.
	Progress func(Progress)
}

// Progress is how far one run is.
type Progress struct {
	Policy string
	Nodes  int
	Run    int           // which of the runs, in the order of the reports
	Runs   int           // how many there are
	Ended  int           // requests
	Total  int           // requests there will be; 0: unknown
	At     time.Duration // virtual time
	Span   time.Duration // of arrivals
	Done   bool
}

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("simulation settings")

// EngineFor returns the engine a workload is meant for: for generated sessions
// ten times faster than a real one, as their load is; for traces about one
// current accelerator serving a mid-size model (docs/design.md, section 10).
func EngineFor(w workload.Workload) engine.Config {
	if _, ok := w.(*workload.Sessions); ok {
		return engine.Config{
			KVTokens: 1_200_000, BlockTokens: 256, MaxRunning: 80, PrefillRate: 80_000, ChunkTokens: 320,
			DecodeStep: 4300 * time.Microsecond,
		}
	}
	return engine.Config{
		KVTokens: 1_500_000, BlockTokens: 16, MaxRunning: 64, PrefillRate: 10_000, ChunkTokens: 512,
		DecodeStep: 20 * time.Millisecond,
	}
}

// completed checks the configuration and fills in what is left out.
func (c Config) completed() (Config, error) {
	if c.Workload == nil {
		return c, fmt.Errorf("%w: no workload: give a trace or a preset", ErrConfig)
	}
	if len(c.Policies) == 0 {
		return c, fmt.Errorf("%w: no policy named", ErrConfig)
	}
	for i, p := range c.Policies {
		if slices.Contains(c.Policies[:i], p) {
			return c, fmt.Errorf("%w: policy %q is named twice", ErrConfig, p)
		}
	}
	if c.Nodes == nil {
		c.Nodes = []int{1}
	}
	if c.HotReplicas < 0 {
		return c, fmt.Errorf("%w: hot prefixes on %d backends, want 1 or more, or 0 for what the fleet decides", ErrConfig, c.HotReplicas)
	}
	for i, n := range c.Nodes {
		if n < 1 || n > MaxNodes || slices.Contains(c.Nodes[:i], n) {
			return c, fmt.Errorf("%w: %d nodes: want distinct numbers from 1 to %d", ErrConfig, n, MaxNodes)
		}
	}
	if err := c.fillSharing(); err != nil {
		return c, err
	}
	switch c.Ingress {
	case "":
		c.Ingress = Random
	case Random, Sticky:
	default:
		return c, fmt.Errorf("%w: ingress is %q, want %q or %q", ErrConfig, c.Ingress, Random, Sticky)
	}
	if c.Parallel < 0 {
		return c, fmt.Errorf("%w: %d runs in parallel, want 1 or more, or 0 for as many as there are processors", ErrConfig, c.Parallel)
	}
	sessions, _ := c.Workload.(*workload.Sessions)
	if c.Backends == 0 {
		c.Backends = DefaultBackends
		if sessions != nil {
			c.Backends = sessions.Backends
		}
	}
	if c.Backends < 1 || c.Backends > MaxBackends {
		return c, fmt.Errorf("%w: %d backends, want 1 to %d", ErrConfig, c.Backends, MaxBackends)
	}
	c.Options.Backends = c.Backends
	if c.Warmup == 0 && sessions != nil {
		// A run shorter than the preset's keeps the same share for measuring.
		c.Warmup = sessions.Warmup
		if d := c.Options.Duration; d > 0 && d < sessions.Duration {
			c.Warmup = time.Duration(float64(d) / float64(sessions.Duration) * float64(sessions.Warmup))
		}
	}
	c.Warmup = max(0, c.Warmup)
	c.fillEngine()
	if c.Extra == nil {
		c.Extra = Baselines
	}
	return c, nil
}

func (c *Config) fillSharing() error {
	if c.Share == nil {
		c.Share = []Share{ShareBoth}
	}
	if c.Staleness == nil {
		c.Staleness = []time.Duration{DefaultStaleness}
	}
	for i, s := range c.Share {
		if s != ShareBoth && s != SharePrefix && s != ShareLoad && s != ShareNone || slices.Contains(c.Share[:i], s) {
			return fmt.Errorf("%w: share is %q: want each of %s, %s, %s and %s at most once", ErrConfig, s, ShareBoth, SharePrefix, ShareLoad, ShareNone)
		}
	}
	if !(c.Loss >= 0 && c.Loss < 1) {
		return fmt.Errorf("%w: loss of %v: want a share of messages, at least 0 and below 1", ErrConfig, c.Loss)
	}
	if !c.Partition.valid() {
		return fmt.Errorf("%w: partition from %v to %v", ErrConfig, c.Partition.From, c.Partition.To)
	}
	for i, d := range c.Staleness {
		if d != Never && (d < 0 || d > MaxStaleness) || slices.Contains(c.Staleness[:i], d) {
			return fmt.Errorf("%w: staleness %v: want distinct delays from 0 to %v, or none", ErrConfig, d, MaxStaleness)
		}
	}
	return nil
}

func (c *Config) fillEngine() {
	e, def := &c.Engine, EngineFor(c.Workload)
	if e.KVTokens == 0 {
		e.KVTokens = def.KVTokens
	}
	if e.BlockTokens == 0 {
		e.BlockTokens = def.BlockTokens
	}
	if e.MaxRunning == 0 {
		e.MaxRunning = def.MaxRunning
	}
	if e.PrefillRate == 0 {
		e.PrefillRate = def.PrefillRate
	}
	if e.ChunkTokens == 0 {
		e.ChunkTokens = def.ChunkTokens
	}
	if e.DecodeStep == 0 {
		e.DecodeStep = def.DecodeStep
	}
}
