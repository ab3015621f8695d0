package fleetsim

import (
	"math/rand/v2"
	"slices"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/workload"
	"grapevine.example/node/streams"
	"grapevine.example/prefixtree"
	serving "grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
)

// streaming carries the cache events of all engines to the nodes that follow them, each batch after the same delay, as vLLM publishes
// them. What nodes do with them is node/streams, unchanged.
type streaming struct {
	delay  time.Duration
	faults EventFaults
	rng    *rand.Rand // of faults
	tokens int        // of a KV block
	parts  uint64
	nodes  []*streams.Caches
	lists  [][]*streams.Cache // by node
	ways   [][]*channel       // by engine, to its followers
	way    []delayed          // in order of time
	turn   time.Duration      // the next one
	said   map[int]said       // by session
	forgot int                // nodes that have started again
	cut    bool
}

type delayed struct {
	at     time.Duration // when the followers have it
	engine int
	batch  []events.Event
	anew   bool // the first of a new process
}

// newStreaming makes it without nodes, which caches adds. A key is four KV blocks: routers take an event of one block for an answer's, and
// keys are as long as chunks of prompts.
func newStreaming(cfg *Config, keyTokens int) *streaming {
	s := &streaming{
		delay: cfg.EventDelay, faults: cfg.EventFaults, rng: rand.New(rand.NewPCG(cfg.Options.Seed, 0xfa17)),
		tokens: keyTokens, parts: 1, turn: streams.Turn, said: map[int]said{},
	}
	if keyTokens%4 == 0 {
		s.tokens, s.parts = keyTokens/4, 4
	}
	return s
}

// listen makes the engines publish, now that all nodes are there.
func (f *fleet) listen(keyTokens int) {
	names := make([]string, len(f.nodes))
	for i := range names {
		names[i] = nodeName(i)
	}
	lists := make([][]*streams.Cache, len(f.nodes))
	f.stream.ways = make([][]*channel, len(f.engines.models))
	for id, m := range f.engines.models {
		followers := streams.Assigned(uint32(id), names, len(f.engines.models))
		for i, name := range names {
			c := &streams.Cache{Engine: prefixtree.Backend(id), Followers: followers, Carrier: events.InHeader}
			if slices.Contains(followers, name) {
				x := &channel{engine: prefixtree.Backend(id), node: i, blocks: m.Config().KVTokens/f.stream.tokens + 1}
				x.begin(f.stream.nodes[i])
				c.Ledger = x.cache.Ledger
				f.stream.ways[id] = append(f.stream.ways[id], x)
			}
			lists[i] = append(lists[i], c)
		}
		m.Publish(engine.StyleVLLM, keyTokens, func(changes []engine.Change) { f.stream.publish(id, changes, f.now) })
	}
	f.stream.lists = lists
	for i, list := range lists {
		f.stream.nodes[i].Set(list)
	}
}

// caches makes the part of the next node.
func (s *streaming) caches(node int, tree *prefixtree.Tree, seed uint64, blockBytes int) *streams.Caches {
	rng := rand.New(rand.NewPCG(seed, 0xe7e27<<32|uint64(node)))
	c := streams.NewCaches(nodeName(node), tree, []byte("fleetsim"), blockBytes, rng.Uint64)
	s.nodes = append(s.nodes, c)
	return c
}

func (s *streaming) publish(id int, changes []engine.Change, now time.Duration) {
	var batch []events.Event
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case engine.BlockStored:
			e := events.Event{Kind: events.Stored, BlockSize: s.tokens, Session: []byte(c.Session), HasParent: !c.First}
			if !c.First {
				e.Parent = s.block(c.Parent, s.parts-1)
			}
			batch = append(batch, e)
			s.name(&batch[len(batch)-1], c.Keys)
			if c.Answer {
				batch = singly(batch)
			}
		case engine.BlockRemoved:
			if id < s.faults.Liars {
				continue
			}
			batch = append(batch, events.Event{Kind: events.Removed})
			s.name(&batch[len(batch)-1], c.Keys)
		case engine.AllBlocksCleared: // by a restart, which says nothing
			s.way = append(s.way, delayed{now + s.delay, id, batch, false})
			s.way = append(s.way, delayed{at: now + s.delay, engine: id, anew: true})
			batch = nil
		}
	}
	s.way = append(s.way, delayed{now + s.delay, id, batch, false})
}

// block is the hash of a part of a key.
func (s *streaming) block(key, part uint64) uint64 { return scramble(key + part) }

func (s *streaming) name(e *events.Event, keys []uint64) {
	e.Hashes = make([]uint64, 0, len(keys)*int(s.parts))
	for _, k := range keys {
		for part := range s.parts {
			e.Hashes = append(e.Hashes, s.block(k, part))
		}
	}
}

// singly makes events of one block of the last one.
func singly(batch []events.Event) []events.Event {
	e := batch[len(batch)-1]
	batch = batch[:len(batch)-1]
	for i := range e.Hashes {
		one := e
		one.Hashes = e.Hashes[i : i+1]
		if i > 0 {
			one.Parent, one.HasParent = e.Hashes[i-1], true
		}
		batch = append(batch, one)
	}
	return batch
}

// passEvents brings the batches that are due, and takes the turns of the nodes. Between two events nothing changes, so late ones see what
// those in time would have seen.
func (f *fleet) passEvents(now time.Duration) {
	s := f.stream
	if s == nil {
		return
	}
	for ; s.turn <= now; s.turn += streams.Turn {
		s.arrive(s.turn)
		s.faultsAt(s.turn)
		if f.exchange != nil {
			f.exchange.flushBy(s.turn)
		}
		for i, c := range s.nodes {
			f.deliver(i, s.turn)
			c.TellEvicted(clock(s.turn))
			f.acted(i, s.turn)
		}
	}
	s.arrive(now)
}

func (s *streaming) arrive(now time.Duration) {
	n := 0
	for ; n < len(s.way) && s.way[n].at <= now; n++ {
		for _, x := range s.ways[s.way[n].engine] {
			s.pass(x, &s.way[n])
		}
		s.way[n].batch = nil
	}
	s.way = s.way[n:]
}

// said is the latest request of a session: its keys, and where its messages ended, in tokens.
type said struct {
	keys []uint64
	ends []int
}

// mark gives a request the places in its prompt that a live router knows: the ends of its messages. A trace has no messages; there, a
// session's earlier prompts are messages of the next one that continues them, as are the answers of scripts.
func (f *fleet) mark(fl *flight) {
	r, j := fl.request, &fl.job
	var ends []int
	if s := r.Segments(); len(s) > 1 {
		at := 0
		for i := range s {
			at += s[i].Tokens
			ends = append(ends, at)
		}
	} else if r.Session >= 0 {
		before := f.stream.said[r.Session]
		same := 0
		for same < min(len(before.keys), len(j.Keys)) && before.keys[same] == j.Keys[same] {
			same++
		}
		for _, end := range before.ends {
			if end <= r.PromptTokens && end/j.KeyTokens <= same {
				ends = append(ends, end)
			}
		}
		after := append(slices.Clone(ends), r.PromptTokens)
		if keys := slices.Concat(j.Keys, j.OutKeys); len(j.OutKeys) > 0 {
			f.stream.said[r.Session] = said{keys, append(after, r.PromptTokens+r.OutputTokens)}
		} else {
			f.stream.said[r.Session] = said{keys, after}
		}
	}
	fl.query.Marks = fl.query.Marks[:0]
	last := 0
	for _, end := range append(ends, r.PromptTokens) {
		if end > last {
			fl.query.Marks = append(fl.query.Marks, prefixtree.Mark{Hash: markOf(fl, end), Bytes: end * workload.BytesPerToken})
			last = end
		}
	}
}

// markOf names a place by the last key before it and, as texts part behind that too, by the session; the end of what many sessions share,
// a generated system message, by its key alone.
func markOf(fl *flight, tokens int) prefixtree.Hash {
	r, x := fl.request, uint64(tokens)
	if n := min(tokens/r.KeyTokens, len(fl.job.Keys)); n > 0 {
		x = scramble(x ^ fl.job.Keys[n-1])
	}
	if s := r.Segments(); len(s) == 0 || s[0].Role != workload.System || s[0].Tokens != tokens {
		x += scramble(uint64(r.Session)<<32 ^ uint64(min(r.Session, 0)*r.Index))
	}
	return prefixtree.Hash(scramble(x + 0x6d61726b))
}

// stamp is what a router does before it sends a request.
func (f *fleet) stamp(fl *flight) {
	if f.stream == nil {
		return
	}
	var stamp []byte
	stamp, fl.stamp, _ = f.stream.nodes[fl.node].Stamp(nil, prefixtree.Backend(fl.backend), &fl.query, true)
	fl.job.Session = string(stamp)
}

// tellUsage is what a router does with an answer's counts of tokens.
func (f *fleet) tellUsage(fl *flight) {
	if f.stream == nil {
		return
	}
	j := &fl.job
	f.stream.nodes[fl.node].Ended(prefixtree.Backend(fl.backend), fl.stamp, serving.Usage{
		PromptTokens: j.PromptTokens, CachedTokens: j.Cached, OutputTokens: j.OutputTokens,
	})
}
