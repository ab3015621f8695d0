package streams

import (
	"slices"
	"sync/atomic"
	"time"

	"grapevine.example/node/health"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/engine/ledger"
	"grapevine.example/proxy/policy"
)

// Turn is how often evictions are passed on. With gossip's delay all nodes avoid what is gone within a second.
const Turn = 400 * time.Millisecond

const (
	// An engine is followed by as many nodes as give each node streamsOfNode streams, but by two at least, so that one may stop, and
	// by eight at most, since each costs the engine up to 110 kB/s.
	leastFollowers, mostFollowers = 2, 8
	streamsOfNode                 = 16 // about 3 % of a core at 50 batches/s each
	// settled: a placement younger than this may still wait in the engine, which then computes again what it evicted.
	settled = prefixtree.Time(500) // ms
	// calls is how often a follower lists what is gone, until it is settled.
	calls = 2 + int(settled)/int(Turn/time.Millisecond)
	// A stream is silent if no batch has come for silentTurns after silentAnswers that say that the engine stored blocks. Engines publish
	// at the end of the step in which they compute.
	silentAnswers, silentTurns = 3, 5
	// Until the engine reports otherwise, loading a token from CPU memory or from a disk takes this part of the time that its
	// computation takes.
	usualCPU, usualDisk = 0.25, 0.75
)

// Assigned returns the nodes that follow an engine, one of so many that publish events, first come first.
func Assigned(key uint32, nodes []string, engines int) []string {
	return health.Assigned(key, nodes, followers(engines, len(nodes)))
}

// followers returns how many nodes follow each of so many engines.
func followers(engines, nodes int) int {
	return min(max(streamsOfNode*nodes/max(engines, 1), leastFollowers), mostFollowers)
}

// Silence finds out that a stream stands and brings nothing. It is to be asked every Turn. The zero value is ready for use.
type Silence struct {
	heard int64 // batches at the last look
	turns int   // since silentAnswers came behind the last batch
}

// Fell reports whether the stream is silent, by the batches so far, Stats.Early of its ledger, and whether it is known to be down.
func (q *Silence) Fell(heard int64, early int, down bool) bool {
	switch {
	case heard != q.heard || early < silentAnswers || down:
		q.heard, q.turns = heard, 0
	case q.turns < silentTurns:
		q.turns++
	default:
		return true
	}
	return false
}

// Cache is what a node knows of an engine that publishes cache events. Immutable.
type Cache struct {
	Engine    prefixtree.Backend
	Followers []string       // nodes, first come first
	Carrier   events.Carrier // of the stamps of requests
	Ledger    *ledger.Ledger // nil: this node does not follow the engine
	price     *price         // nil: the usual one
}

// Caches stamp requests so that events name them, tell the policy what engines hold and the tree what they evicted. It is pure: no
// clock, goroutine or I/O. Safe for concurrent use, but for Set and TellEvicted, which one goroutine calls.
type Caches struct {
	self       string
	tree       *prefixtree.Tree
	blockBytes int
	random     func() uint64
	stamps     *ledger.Stamps
	links      *ledger.Links
	table      atomic.Pointer[[]*Cache] // by number of the backend; nil entries: no stream
	gone       []prefixtree.Hash        // scratch
}

// NewCaches takes the node's name, its tree, the secret and the block size of the fleet's hashes, and a source of random numbers that
// is safe for concurrent use if Stamp is called so.
func NewCaches(self string, tree *prefixtree.Tree, secret []byte, blockBytes int, random func() uint64) *Caches {
	return &Caches{self: self, tree: tree, blockBytes: blockBytes, random: random, stamps: ledger.NewStamps(secret), links: ledger.NewLinks()}
}

// NewLedger returns an empty ledger for an engine of at most so many KV blocks.
func (s *Caches) NewLedger(b prefixtree.Backend, blocks int) *ledger.Ledger {
	return ledger.New(ledger.Config{Engine: b, Stamps: s.stamps, BlockBytes: s.blockBytes, Blocks: blocks, Seed: s.random(), Links: s.links})
}

// Set replaces the engines that publish cache events.
func (s *Caches) Set(list []*Cache) {
	last := -1
	for _, c := range list {
		last = max(last, int(c.Engine))
	}
	table := make([]*Cache, last+1)
	for _, c := range list {
		table[c.Engine] = c
	}
	s.table.Store(&table)
}

func (s *Caches) of(b prefixtree.Backend) *Cache {
	t := s.table.Load()
	if t == nil || int(b) >= len(*t) {
		return nil
	}
	return (*t)[b]
}

// TellEvicted takes what engines have evicted out of the trees of all nodes; it is to be called every Turn. The first follower of an
// engine does so; what it does not tell, because its stream or the node is down or its stream lost the event, is still in this node's
// tree after all its calls, and the next follower tells it.
func (s *Caches) TellEvicted(now prefixtree.Time) {
	t := s.table.Load()
	if t == nil {
		return
	}
	for _, c := range *t {
		if c == nil || c.Ledger == nil {
			continue
		}
		before := slices.Index(c.Followers, s.self)
		if s.gone = c.Ledger.Gone(s.gone[:0], before*calls, calls); len(s.gone) > 0 {
			s.tree.Evicted(c.Engine, s.gone, now-settled, now)
		}
	}
}

var (
	_ proxy.Stamper = (*Caches)(nil)
	_ policy.Truth  = (*Caches)(nil)
)

func (s *Caches) prompt(q *policy.Request) ledger.Prompt {
	return ledger.Prompt{Blocks: q.Hashes, Marks: q.Marks, BlockBytes: s.blockBytes}
}

// Stamp implements proxy.Stamper.
func (s *Caches) Stamp(dst []byte, b prefixtree.Backend, q *policy.Request, inBody bool) ([]byte, uint64, events.Carrier) {
	c := s.of(b)
	if c == nil || len(q.Marks) == 0 || c.Carrier == events.InBody && !inBody {
		return dst, 0, events.NoCarrier
	}
	end := q.Marks[len(q.Marks)-1]
	stamp := ledger.Stamp{ID: s.random() >> 16, End: end.Hash, Bytes: end.Bytes, Inner: ledger.InnerMarks(q.Marks)}
	if n := len(q.Hashes); n > 0 {
		stamp.Block = q.Hashes[n-1]
	}
	if c.Ledger != nil {
		p := s.prompt(q)
		c.Ledger.Sent(stamp.ID, &p)
	}
	return s.stamps.Append(dst, stamp), stamp.ID, c.Carrier
}

// Ended implements proxy.Stamper.
func (s *Caches) Ended(b prefixtree.Backend, id uint64, t engine.Usage) {
	if c := s.of(b); c != nil && c.Ledger != nil {
		c.Ledger.Ended(id, t.PromptTokens, t.CachedTokens, t.OutputTokens)
	}
}

// Placed takes an anchor that another node placed; see prefixtree.Config.Placed.
func (s *Caches) Placed(b prefixtree.Backend, anchor prefixtree.Hash, span int, at prefixtree.Time) {
	if c := s.of(b); c != nil && c.Ledger != nil {
		c.Ledger.Placed(anchor, span, at)
	}
}

// Held implements policy.Truth.
func (s *Caches) Held(b prefixtree.Backend, q *policy.Request, blocks int) policy.Held {
	c := s.of(b)
	if c == nil || c.Ledger == nil || len(q.Marks) == 0 {
		return policy.Held{}
	}
	p := s.prompt(q)
	h := c.Ledger.Held(&p, blocks)
	return policy.Held{
		Known: h.Known, Tokens: h.Tokens,
		Loading: c.price.of(h.Below[events.CPU], h.Below[events.Disk]),
	}
}

// Latest implements policy.Truth. Where no engine publishes events, decisions are spared the lock that they would share.
func (s *Caches) Latest(q *policy.Request) (b prefixtree.Backend, known bool) {
	if t := s.table.Load(); t == nil || len(*t) == 0 {
		return 0, false
	}
	return s.links.Latest(q.Marks)
}
