// Package fleetsim runs a fleet in virtual time: routers with the real policy and prefix tree, and
// engines of chaos/engine's model. Equal seeds give byte-identical reports. DESIGN.md lists what is
// modelled.
package fleetsim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// Ingress selects the node by which a request enters.
type Ingress string

const (
	// Random draws any node, as behind an L4 balancer.
	Random Ingress = "random"
	// Sticky sends all turns of a session to one node, single requests to any.
	Sticky Ingress = "sticky"
)

const (
	// DefaultBackends is for traces; generated workloads have their own.
	DefaultBackends = 16
	// MaxBackends, MaxNodes and MaxAdapters bound what a mistyped flag can allocate.
	MaxBackends = 4096
	MaxNodes    = 1024
	MaxAdapters = 4096
)

// Config describes a run for every combination of policy, nodes, share and staleness. Only Workload
// and Policies are required.
type Config struct {
	Workload workload.Workload
	Options  workload.Options
	Policies []string
	Nodes    []int // nil: one node
	// Share and Staleness are what nodes send and how long it takes to reach all. nil: both,
	// [DefaultStaleness].
	Share     []Share
	Staleness []time.Duration
	// Loss is the probability that a node's placements of one flush never reach a given peer,
	// without the repair of live nodes.
	Loss      float64
	Partition Partition
	// EventDelay is how long after a batch of cache events the nodes that follow the engine have it, under policies that name Events.
	EventDelay  time.Duration
	EventFaults EventFaults
	Backends    int // 0: the workload's, else DefaultBackends
	// Engine configures every backend; zero fields are EngineFor the workload's.
	Engine engine.Config
	// Engines, unless empty, replaces Backends and Engine by one entry per backend.
	Engines []Engine
	// Adapters, if above 0, gives each session one of so many LoRA adapters, the k-th with a probability in proportion to 1/k. All
	// engines serve all.
	Adapters int
	Ingress  Ingress // "": Random
	// Clients share the traffic; nil: all is one's. Queueing is what is played of them, each kind as a run
	// of its own; nil: all with Clients, else QueueOff. The queue is on at every node or at none. Zero
	// Queue and Policy.Gate: the defaults.
	Clients  []Client
	Queueing []Queueing
	Queue    queue.Limits
	// Warmup is excluded from the report. 0: the workload's (none for traces); negative: none.
	Warmup    time.Duration
	Telemetry Telemetry // "": NoTelemetry
	// TelemetryDelay is how long a report is on its way, beside the interval between two.
	TelemetryDelay time.Duration
	// Unstreamed is the share of the requests whose clients get the whole answer at its end.
	Unstreamed float64
	// Run sets the routers' seed, block size, number of nodes and extra strategies.
	Policy policy.Config
	Tree   prefixtree.Config
	// HideCapacity hides the engines' KV size from the routers, as some engines do.
	HideCapacity bool
	// HotReplicas, if above 0, fixes the size of every replica set of a hot prefix.
	NoHot       bool
	HotReplicas int
	// Extra returns further strategies, once per router. nil: Baselines.
	Extra    func() map[string]policy.Strategy
	Parallel int
	// Progress, if set, is not called concurrently.
	Progress func(Progress)

	sent, answered func(*fleet, *flight) // for tests: a request goes to its engine; its answer ends
}

// Engine is one backend that differs from others. Zero fields of its Config are the model's defaults.
type Engine struct {
	engine.Config
	Model string // the only one that it serves; "": any
	// Joins is when it joins, cold; 0: it is there from the start.
	Joins time.Duration
	// From SlowAt on, every step takes SlowBy times as long; SlowBy 0: never.
	SlowAt time.Duration
	SlowBy float64
}

type Progress struct {
	Policy string
	Nodes  int
	Run    int           // index of the run, in the order of the reports
	Runs   int           // number of runs
	Ended  int           // requests that ended
	Total  int           // expected requests; 0: unknown
	At     time.Duration // virtual time
	Span   time.Duration // of arrivals
	Done   bool
}

var ErrConfig = errors.New("simulation settings")

// EngineFor returns, for generated sessions, an engine ten times faster than a real one, as is
// their load; for traces, about one current accelerator with a mid-size model (docs/design.md,
// section 10).
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

func (c Config) completed() (Config, error) {
	c.Ingress = cmp.Or(c.Ingress, Random)
	switch {
	case c.Workload == nil:
		return c, fmt.Errorf("%w: no workload: give a trace or a preset", ErrConfig)
	case len(c.Policies) == 0:
		return c, fmt.Errorf("%w: no policy named", ErrConfig)
	case c.HotReplicas < 0:
		return c, fmt.Errorf("%w: hot prefixes on %d backends, want 1 or more, or 0 to let the fleet decide", ErrConfig, c.HotReplicas)
	case c.Ingress != Random && c.Ingress != Sticky:
		return c, fmt.Errorf("%w: ingress is %q, want %q or %q", ErrConfig, c.Ingress, Random, Sticky)
	case !slices.Contains(Telemetries, cmp.Or(c.Telemetry, NoTelemetry)):
		return c, fmt.Errorf("%w: telemetry is %q, want one of %q", ErrConfig, c.Telemetry, Telemetries)
	case c.Adapters < 0 || c.Adapters > MaxAdapters:
		return c, fmt.Errorf("%w: %d adapters, want 0 to %d", ErrConfig, c.Adapters, MaxAdapters)
	case c.Parallel < 0:
		return c, fmt.Errorf("%w: %d runs in parallel, want 1 or more, or 0 for as many as there are processors", ErrConfig, c.Parallel)
	}
	if c.EventDelay < 0 || c.EventDelay > MaxStaleness {
		return c, fmt.Errorf("%w: cache events come after %v: want 0 to %v", ErrConfig, c.EventDelay, MaxStaleness)
	}
	if err := c.EventFaults.check(); err != nil {
		return c, err
	}
	if c.TelemetryDelay < 0 || c.TelemetryDelay > MaxStaleness {
		return c, fmt.Errorf("%w: telemetry comes after %v: want 0 to %v", ErrConfig, c.TelemetryDelay, MaxStaleness)
	}
	if !(c.Unstreamed >= 0 && c.Unstreamed <= 1) {
		return c, fmt.Errorf("%w: %v of the requests are not streamed: want a share, 0 to 1", ErrConfig, c.Unstreamed)
	}
	for i, p := range c.Policies {
		if slices.Contains(c.Policies[:i], p) {
			return c, fmt.Errorf("%w: policy %q is named twice", ErrConfig, p)
		}
		if _, err := newPoint(p); err != nil {
			return c, err
		}
	}
	if c.Nodes == nil {
		c.Nodes = []int{1}
	}
	for i, n := range c.Nodes {
		if n < 1 || n > MaxNodes || slices.Contains(c.Nodes[:i], n) {
			return c, fmt.Errorf("%w: %d nodes: want distinct numbers from 1 to %d", ErrConfig, n, MaxNodes)
		}
	}
	if err := c.fillSharing(); err != nil {
		return c, err
	}
	c.Clients = slices.Clone(c.Clients)
	if err := c.fillClients(); err != nil {
		return c, err
	}
	sessions, _ := c.Workload.(*workload.Sessions)
	if sessions != nil {
		c.Backends = cmp.Or(c.Backends, sessions.Backends)
	}
	c.Backends = cmp.Or(len(c.Engines), c.Backends, DefaultBackends)
	if c.Backends < 1 || c.Backends > MaxBackends {
		return c, fmt.Errorf("%w: %d backends, want 1 to %d", ErrConfig, c.Backends, MaxBackends)
	}
	for i, e := range c.Engines {
		if e.Joins < 0 || e.SlowAt < 0 || !(e.SlowBy >= 0) || math.IsInf(e.SlowBy, 0) {
			return c, fmt.Errorf("%w: engine %d joins at %v and slows down by %v at %v: want 0 or more", ErrConfig, i, e.Joins, e.SlowBy, e.SlowAt)
		}
	}
	c.Options.Backends = c.Backends
	if c.Warmup == 0 && sessions != nil {
		c.Warmup = sessions.Warmup
		if d := c.Options.Duration; d > 0 && d < sessions.Duration {
			c.Warmup = time.Duration(float64(d) / float64(sessions.Duration) * float64(sessions.Warmup))
		}
	}
	c.Warmup = max(0, c.Warmup)
	if c.fillEngine(); len(c.Engines) == 0 {
		c.Engines = slices.Repeat([]Engine{{Config: c.Engine}}, c.Backends)
	}
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
	e.KVTokens = cmp.Or(e.KVTokens, def.KVTokens)
	e.BlockTokens = cmp.Or(e.BlockTokens, def.BlockTokens)
	e.MaxRunning = cmp.Or(e.MaxRunning, def.MaxRunning)
	e.PrefillRate = cmp.Or(e.PrefillRate, def.PrefillRate)
	e.ChunkTokens = cmp.Or(e.ChunkTokens, def.ChunkTokens)
	e.DecodeStep = cmp.Or(e.DecodeStep, def.DecodeStep)
}
