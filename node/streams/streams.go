// Package streams follows the cache events of engines: it finds their streams, follows those that are this node's to follow (Streams),
// stamps requests so that the events name them, and tells the policy what engines hold and the tree what they evicted (Caches).
package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/engine/ledger"
)

const (
	// askEvery is how often an engine is asked for its stream.
	askEvery = 15 * time.Second
	// mostBlocks bounds the KV blocks of all followed engines, 60 to 90 bytes each, and mostOfOne those of one.
	mostBlocks = 1 << 22
	mostOfOne  = 1 << 20
	// usualBlock, in tokens, is assumed until an engine names its block size, and usualBlocks if its cache size is not known.
	usualBlock  = 16
	usualBlocks = 1 << 17
	// belowGPU: memory and disks hold this many times what the GPU holds; more is refused by the ledger.
	belowGPU = 1
)

type Config struct {
	Self  string
	Peers func() []string // the other live nodes that follow any streams; nil: none
	Off   bool            // follow only engines with an address
	// Addresses are those that the operator gave, or config.EventsOff, by the name of the backend.
	Addresses  map[string]string
	Backends   func() *backends.Directory // called from Run on
	Tree       *prefixtree.Tree
	Secret     []byte // of the fleet's hashes
	BlockBytes int
	Log        zerolog.Logger
}

// Streams is safe for concurrent use.
type Streams struct {
	*Caches
	cfg   Config
	table atomic.Pointer[[]*stream] // by number of the backend; nil entries: no stream
	wake  chan struct{}

	mu    sync.Mutex
	found map[uint32]finding // by key of the backend
	asked uint64             // changes of found

	// Of Run's goroutine.
	roster *backends.Roster
	nodes  []string
	seen   uint64 // asked at the last look
}

// finding is the last answer of an engine.
type finding struct {
	url    string
	source events.Source
	why    string // not empty: there is nothing to follow
}

// stream is one engine's stream. Immutable.
type stream struct {
	Cache
	url        string
	generation uint32
	source     events.Source
	own        *following // nil: others follow it
	why        string     // why this node does not, although it is a follower
}

// following is a stream that this node follows.
type following struct {
	stream events.Stream
	ledger *ledger.Ledger
	blocks int // the ledger's limit
	state  atomic.Uint32
	cause  atomic.Pointer[string]
	stop   context.CancelFunc
	log    zerolog.Logger

	silence Silence // of Streams.Run's goroutine
}

// New starts nothing.
func New(cfg Config) *Streams {
	caches := NewCaches(cfg.Self, cfg.Tree, cfg.Secret, cfg.BlockBytes, rand.Uint64)
	return &Streams{Caches: caches, cfg: cfg, wake: make(chan struct{}, 1), found: make(map[uint32]finding)}
}

// Idle reports that no engine's stream is wanted, so that Run and Ask are not needed.
func (s *Streams) Idle() bool {
	for _, a := range s.cfg.Addresses {
		if a != config.EventsOff {
			return false
		}
	}
	return s.cfg.Off
}

// Run follows streams until ctx ends.
func (s *Streams) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(Turn)
	defer tick.Stop()
	for {
		s.arrange(ctx, &running)
		s.TellEvicted(prefixtree.Time(time.Now().UnixMilli()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.listen()
		case <-s.wake:
		}
	}
}

// listen finds silent streams: their connection stands, but the events of requests that have ended do not come.
func (s *Streams) listen() {
	t := s.table.Load()
	if t == nil {
		return
	}
	for _, st := range *t {
		if st == nil || st.own == nil {
			continue
		}
		f := st.own
		early := f.ledger.Stats().Early
		if f.silence.Fell(f.stream.Counters.Batches.Load(), early, events.State(f.state.Load()) == events.Down) {
			f.stream.Silent(fmt.Sprintf("silent: %d requests have ended, and no event of them has come", early))
		}
	}
}

// Search asks all engines for their streams until ctx ends.
func (s *Streams) Search(ctx context.Context) { s.cfg.Backends().Poll(ctx, askEvery, s.ask) }

func (s *Streams) ask(ctx context.Context, e *backends.Engine) {
	f := finding{url: e.URL}
	address := s.cfg.Addresses[e.Name]
	switch {
	case address == config.EventsOff || address == "" && s.cfg.Off:
		f.why = "events is off"
	case address != "":
		var err error
		if f.source, err = events.Configured(address); err != nil {
			f.why = err.Error()
		}
	default:
		sources, err := e.EventSources(ctx)
		switch {
		case errors.Is(err, events.ErrNone), errors.Is(err, events.ErrForeign):
			f.why = err.Error()
		case err != nil:
			s.mu.Lock()
			last, known := s.found[e.Key]
			s.mu.Unlock()
			if known && last.url == e.URL {
				return // it keeps its stream while it is silent
			}
			f.why = err.Error()
		case len(sources) > 1:
			f.why = fmt.Sprintf("%d ranks share the address, and the engine chooses among them", len(sources))
		case sources[0].Session == events.NoCarrier:
			f.why = "the engine keeps the blocks of sessions (--enable-session-radix-cache), so requests are not named"
		default:
			f.source = sources[0]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found[e.Key] == f {
		return
	}
	s.found[e.Key] = f
	s.asked++
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// arrange begins and ends streams after a change of the engines, the nodes or what engines answered.
func (s *Streams) arrange(ctx context.Context, running *sync.WaitGroup) {
	roster, nodes := s.cfg.Backends().Roster(), []string{s.cfg.Self}
	if s.cfg.Peers != nil {
		nodes = append(nodes, s.cfg.Peers()...)
	}
	slices.Sort(nodes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if roster == s.roster && slices.Equal(nodes, s.nodes) && s.asked == s.seen {
		return
	}
	s.roster, s.nodes, s.seen = roster, nodes, s.asked
	listed := make(map[uint32]bool, len(roster.List))
	var published []*backends.Engine
	last := 0
	for _, e := range roster.List {
		listed[e.Key] = true
		if f := s.found[e.Key]; f.url == e.URL && f.why == "" {
			published = append(published, e)
			last = max(last, int(e.ID))
		}
	}
	assigned, rank := make(map[uint32][]string, len(published)), make(map[uint32]uint, len(published))
	for _, e := range published {
		assigned[e.Key] = Assigned(e.Key, nodes, len(published))
		rank[e.Key] = uint(slices.Index(assigned[e.Key], s.cfg.Self)) // the largest number if this node is none of them
	}
	// The engines of which this node is one of the first followers come first, in case it cannot hold the blocks of all.
	slices.SortStableFunc(published, func(x, y *backends.Engine) int { return cmp.Compare(rank[x.Key], rank[y.Key]) })
	blocks, table, kept := 0, make([]*stream, last+1), make(map[*following]bool)
	caches := make([]*Cache, 0, len(published))
	for _, e := range published {
		st := s.next(ctx, running, e, s.found[e.Key].source, assigned[e.Key], &blocks)
		table[e.ID] = st
		caches = append(caches, &st.Cache)
		kept[st.own] = true
	}
	for key := range s.found {
		if !listed[key] {
			delete(s.found, key)
		}
	}
	s.Set(caches)
	old := s.table.Swap(&table)
	if old == nil {
		return
	}
	for _, st := range *old {
		if st != nil && st.own != nil && !kept[st.own] {
			st.own.stop()
		}
	}
}

// next keeps the ledger of an engine of which nothing changed but its followers.
func (s *Streams) next(ctx context.Context, running *sync.WaitGroup, e *backends.Engine, source events.Source, followers []string, blocks *int) *stream {
	st := &stream{Cache: Cache{Engine: e.ID, Followers: followers, Carrier: source.Session}, url: e.URL, generation: e.Generation, source: source}
	if !slices.Contains(followers, s.cfg.Self) {
		return st
	}
	was := s.stream(e.ID)
	if st.price = new(price); was != nil && was.url == st.url && was.price != nil {
		st.price = was.price
	}
	if was != nil && was.url == st.url && was.generation == st.generation && was.source == source && was.own != nil {
		st.own, st.Ledger = was.own, was.Ledger
		*blocks += st.own.blocks
		return st
	}
	limit := s.limit(e, source.BlockSize)
	if *blocks+limit > mostBlocks {
		st.why = fmt.Sprintf("this node follows engines of %d KV blocks already; add nodes", *blocks)
		return st
	}
	*blocks += limit
	st.own = s.begin(ctx, running, e, source, limit)
	st.Ledger = st.own.ledger
	return st
}

func (s *Streams) limit(e *backends.Engine, size int) int {
	_, tokens := s.cfg.Backends().Load(e)
	if tokens == 0 {
		return usualBlocks
	}
	if size == 0 {
		size = usualBlock
	}
	return min((1+belowGPU)*(tokens/size+1), mostOfOne)
}

func (s *Streams) begin(ctx context.Context, running *sync.WaitGroup, e *backends.Engine, source events.Source, limit int) *following {
	ctx, stop := context.WithCancel(ctx)
	f := &following{
		blocks: limit, stop: stop, log: s.cfg.Log.With().Str("backend", e.Name).Logger(),
		ledger: s.NewLedger(e.ID, limit),
	}
	f.state.Store(uint32(events.Down))
	f.stream.Source, f.stream.Sink = source, f
	running.Go(func() { f.stream.Run(ctx) })
	return f
}

// Batch implements events.Sink.
func (f *following) Batch(batch []events.Event) { f.ledger.Batch(batch) }

// Reset implements events.Sink.
func (f *following) Reset(why string) {
	f.ledger.Reset(why)
	f.log.Info().Str("reason", why).Msg("the cache of the backend is not known; it is learned again from its events")
}

// State implements events.Sink.
func (f *following) State(st events.State, why string) {
	f.ledger.State(st, why)
	f.cause.Store(&why)
	if was := events.State(f.state.Swap(uint32(st))); was != st {
		f.log.Info().Stringer("state", st).Str("reason", why).Msg("stream of cache events")
	}
}

func (s *Streams) stream(b prefixtree.Backend) *stream {
	t := s.table.Load()
	if t == nil || int(b) >= len(*t) {
		return nil
	}
	return (*t)[b]
}
