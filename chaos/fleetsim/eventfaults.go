package fleetsim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/node/streams"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

// EventFaults is what befalls the streams of cache events and the engines that publish them. Zero fields: nothing.
type EventFaults struct {
	// Loss is the share of the batches that each follower loses for good, as without a replay.
	Loss float64
	// Cut is when no follower hears anything. Connections stand, so only the silence shows it. With Replay, what was published meanwhile
	// comes at its end; without, it is lost.
	Cut    Partition
	Replay bool
	// Restart is when the first engine restarts; the next one does a second later. Caches are lost, requests are computed again. It
	// concerns runs without events, too.
	Restart time.Duration
	// Forget is when the first node starts again with empty ledgers and no replay; the next one does a second later. Its tree stays, as
	// by a snapshot.
	Forget time.Duration
	// Liars is how many engines publish none of what they evict.
	Liars int
}

// between is the time between the restarts of two engines or nodes.
const between = time.Second

func (c *EventFaults) check() error {
	if !(c.Loss >= 0 && c.Loss <= 1) || !c.Cut.valid() || c.Restart < 0 || c.Forget < 0 || c.Liars < 0 {
		return fmt.Errorf("%w: faults of cache events: loss %v, cut %v to %v, restart %v, forget %v, liars %d", ErrConfig,
			c.Loss, c.Cut.From, c.Cut.To, c.Restart, c.Forget, c.Liars)
	}
	return nil
}

// ParseEventFaults reads loss=SHARE, cut=FROM-TO, replay, restart=TIME, forget=TIME, and liars=N.
func ParseEventFaults(list []string) (c EventFaults, err error) {
	for _, text := range list {
		name, value, _ := strings.Cut(text, "=")
		switch name {
		case "loss":
			c.Loss, err = strconv.ParseFloat(value, 64)
		case "cut":
			c.Cut, err = ParsePartition(value)
		case "replay":
			c.Replay = true
		case "restart":
			c.Restart, err = time.ParseDuration(value)
		case "forget":
			c.Forget, err = time.ParseDuration(value)
		case "liars":
			c.Liars, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("want loss=SHARE, cut=FROM-TO, replay, restart=TIME, forget=TIME or liars=N")
		}
		if err != nil {
			return c, fmt.Errorf("%w: fault of cache events %q: %w", ErrConfig, text, err)
		}
	}
	return c, c.check()
}

// channel is the stream of an engine to one of its followers. It follows the rules of events.Stream.
type channel struct {
	engine  prefixtree.Backend
	node    int
	blocks  int
	cache   streams.Cache // of which the ledger
	state   events.State
	heard   int64  // batches
	gap     uint64 // batches lost since the last one
	missing uint64 // since the last reset
	losses  events.Losses
	silence streams.Silence
	held    []delayed // for the replay
}

func (x *channel) begin(c *streams.Caches) {
	*x = channel{engine: x.engine, node: x.node, blocks: x.blocks, cache: streams.Cache{Ledger: c.NewLedger(x.engine, x.blocks)}}
	x.become(events.Live)
}

func (x *channel) become(s events.State) {
	switch x.state = s; {
	case s == events.Live && x.losses.Many():
		x.state = events.Down
	case s == events.Live && x.missing > 0:
		x.state = events.Degraded
	}
	x.cache.Ledger.State(x.state, "")
}

// pass brings a follower a batch, or not.
func (s *streaming) pass(x *channel, d *delayed) {
	switch {
	case s.cut && s.faults.Replay:
		x.held = append(x.held, delayed{d.at, d.engine, slices.Clone(d.batch), d.anew})
	case s.cut, s.faults.Loss > 0 && s.rng.Float64() < s.faults.Loss:
		x.gap++
	default:
		x.take(d)
	}
}

func (x *channel) take(d *delayed) {
	if d.anew {
		x.gap, x.missing, x.losses = 0, 0, events.Losses{}
		x.cache.Ledger.Reset("")
		x.become(events.Live)
		return
	}
	if x.gap > 0 {
		x.missing += x.gap
		x.gap = 0
		x.losses.Gap()
		if x.missing > events.MaxGap {
			x.missing = 0
			x.cache.Ledger.Reset("")
		}
		x.become(events.Live)
	}
	x.losses.Batch()
	if x.state == events.Down && !x.losses.Many() {
		x.become(events.Live)
	}
	x.heard++
	x.cache.Ledger.Batch(d.batch)
}

// faultsAt begins and ends what befalls the streams, and looks for silent ones.
func (s *streaming) faultsAt(now time.Duration) {
	was := s.cut
	s.cut = !s.faults.Cut.none() && s.faults.Cut.From <= now && now < s.faults.Cut.To
	for _, list := range s.ways {
		for _, x := range list {
			if was && !s.cut {
				for i := range x.held {
					x.take(&x.held[i])
				}
				x.held = nil
			}
			if x.silence.Fell(x.heard, x.cache.Ledger.Stats().Early, x.state == events.Down) {
				x.become(events.Down)
			}
		}
	}
	for s.faults.Forget > 0 && s.forgot < len(s.nodes) && s.faults.Forget+time.Duration(s.forgot)*between <= now {
		s.forget(s.forgot)
		s.forgot++
	}
}

func (s *streaming) forget(node int) {
	for i, c := range s.lists[node] {
		if c.Ledger == nil {
			continue
		}
		for _, x := range s.ways[c.Engine] {
			if x.node == node {
				x.begin(s.nodes[node])
				again := *c
				again.Ledger = x.cache.Ledger
				s.lists[node][i] = &again
			}
		}
	}
	s.nodes[node].Set(s.lists[node])
}

// restarts makes the engines whose time it is lose their caches.
func (f *fleet) restarts(now time.Duration) {
	first := f.cfg.EventFaults.Restart
	for ; first > 0 && f.restarted < len(f.engines.models) && first+time.Duration(f.restarted)*between <= now; f.restarted++ {
		f.engines.models[f.restarted].Clear(now)
		f.engines.update(f.restarted)
	}
}
