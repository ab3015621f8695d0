package fleet_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/fleet"
	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/prefixtree"
)

// guest is a gossip member with synthetic placements. Safe for concurrent use.
type guest struct {
	fleet  *gossip.Exchange
	tree   *prefixtree.Tree
	outbox *prefixtree.Outbox
	names  engineNames
	deaf   bool
	placed atomic.Int64
}

type engineNames []string

func (n engineNames) Key(b prefixtree.Backend) (uint32, bool) {
	if int(b) >= len(n) {
		return 0, false
	}
	return prefixtree.BackendKey(n[b]), true
}

func (n engineNames) Backend(key uint32) (prefixtree.Backend, bool) {
	for i, name := range n {
		if prefixtree.BackendKey(name) == key {
			return prefixtree.Backend(i), true
		}
	}
	return 0, false
}

type guestConfig struct {
	name    string
	addr    string
	join    []string
	key     []byte
	secret  string
	engines []string
	deaf    bool
}

func newGuest(t *testing.T, cfg guestConfig) *guest {
	t.Helper()
	hasher, err := prefixtree.NewHasher([]byte(cfg.secret), blockBytes)
	if err != nil {
		t.Fatal(err)
	}
	outbox := prefixtree.NewOutbox(0)
	tree, err := prefixtree.New(prefixtree.Config{MaxBackends: len(cfg.engines), Changed: outbox.Add})
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{tree: tree, outbox: outbox, names: cfg.engines, deaf: cfg.deaf}
	g.fleet, err = gossip.New(gossip.Config{
		Member: member.Config{
			Self: member.Info{Name: cfg.name, Version: "test", Cluster: "grapevine", KeyID: hasher.KeyID(), BlockBytes: blockBytes},
			Bind: cfg.addr, Join: cfg.join, Keys: [][]byte{cfg.key}, Log: zerolog.Nop(),
		},
		Knowledge: g, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := g.fleet.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.leave(t) })
	return g
}

func (g *guest) leave(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g.fleet.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func preload(ctx context.Context, t *testing.T, f *fleet.Fleet, placements int) {
	t.Helper()
	g := guestsOf(t, f, 1)[0]
	meet(ctx, t, []*guest{g}, f.Nodes()...)
	source := newConversations(3, len(g.names))
	for range placements {
		for g.outbox.Stats().Pending > 16_000 {
			if err := sleep(ctx, 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		p := source.next()
		g.place(p.backend, p.chain)
	}
	want := uint64(0)
	for _, s := range g.tree.FactDigests(now(), g.names) {
		want += s.Count
	}
	for _, n := range f.Nodes() {
		for {
			got := factsOf(ctx, t, n).Count
			if got >= want {
				break
			}
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				t.Fatalf("%s has %d of %d facts", n.Name(), got, want)
			}
		}
	}
	g.leave(t)
}

func guestsOf(t *testing.T, f *fleet.Fleet, n int) []*guest {
	t.Helper()
	out := make([]*guest, n)
	join := f.GossipAddrs()
	for i := range out {
		out[i] = newGuest(t, guestConfig{
			name: fmt.Sprintf("guest-%d", i), addr: f.Guest(i), join: join, key: f.Key(), secret: f.Secret(), engines: f.EngineNames(), deaf: true,
		})
		join = append(join, f.Guest(i))
	}
	return out
}

func meet(ctx context.Context, t *testing.T, guests []*guest, nodes ...*fleet.Node) {
	t.Helper()
	want := len(guests) + len(nodes) - 1
	for {
		missing := ""
		for _, g := range guests {
			heard := 0
			for _, p := range g.fleet.Peers() {
				if p.Connected {
					heard++
				}
			}
			if heard != want {
				missing = fmt.Sprintf("%s hears %d of %d, seeds %+v", g.fleet.Members().Self().Name, heard, want, g.fleet.Members().JoinErrors())
			}
		}
		for _, n := range nodes {
			list, err := n.Nodes(ctx)
			if err != nil {
				t.Fatal(err)
			}
			heard := 0
			for _, p := range list.Nodes {
				if p.Connected {
					heard++
				}
			}
			if heard != want {
				missing = fmt.Sprintf("%s hears %d of %d: %+v", n.Name(), heard, want, list)
			}
		}
		if missing == "" {
			return
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(missing)
		}
	}
}

func now() prefixtree.Time { return prefixtree.Time(time.Now().UnixMilli()) }

func (g *guest) place(b prefixtree.Backend, chain []prefixtree.Hash) {
	var tr prefixtree.TouchHistory
	g.tree.Record(b, chain, now(), &tr)
	g.placed.Add(1)
}

type conversations struct {
	rng     *rand.Rand
	engines int
	open    []placement
}

type placement struct {
	backend prefixtree.Backend
	chain   []prefixtree.Hash
}

func newConversations(seed uint64, engines int) *conversations {
	return &conversations{rng: rand.New(rand.NewPCG(seed, 0x905)), engines: engines}
}

const (
	sharedBlocks = 2048 * 4 / blockBytes
	maxOpen      = 4096
)

func (c *conversations) next() placement {
	if len(c.open) > 0 && c.rng.IntN(3) == 0 { // a third of all placements are second turns if half of the first have one
		i := c.rng.IntN(len(c.open))
		p := c.open[i]
		c.open[i] = c.open[len(c.open)-1]
		c.open = c.open[:len(c.open)-1]
		p.chain = c.extend(p.chain, (512+1000+c.rng.IntN(4000))*4/blockBytes)
		return p
	}
	p := placement{backend: prefixtree.Backend(c.rng.IntN(c.engines))}
	for i := range sharedBlocks {
		p.chain = append(p.chain, prefixtree.Hash(0x5eed<<16|uint64(i)))
	}
	p.chain = c.extend(p.chain, (1000+c.rng.IntN(16_000))*4/blockBytes)
	if c.rng.IntN(2) == 0 && len(c.open) < maxOpen {
		c.open = append(c.open, p)
	}
	return p
}

func (c *conversations) extend(chain []prefixtree.Hash, blocks int) []prefixtree.Hash {
	chain = chain[:len(chain):len(chain)]
	for range blocks {
		chain = append(chain, prefixtree.Hash(c.rng.Uint64()))
	}
	return chain
}

func drive(ctx context.Context, guests []*guest, seed uint64, perSecond float64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, g := range guests {
		wg.Go(func() {
			source := newConversations(seed+uint64(i), len(g.names))
			began := time.Now()
			ticker := time.NewTicker(10 * time.Millisecond)
			defer ticker.Stop()
			for made := 0.0; ; {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				for due := time.Since(began).Seconds() * perSecond; made < due; made++ {
					p := source.next()
					g.place(p.backend, p.chain)
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (g *guest) Drain(dst []byte, limit int) ([]byte, int) {
	return g.outbox.Drain(dst, limit, g.names)
}

func (g *guest) Apply(_ string, payload []byte, shift time.Duration) (gossip.Applied, error) {
	if g.deaf {
		return gossip.Applied{}, nil
	}
	a, err := g.tree.ApplyDelta(payload, g.names, shift, now())
	return gossip.Applied{Records: a.Records, News: a.News, Unknown: a.Unknown}, err
}

// Snapshot yields nothing of a deaf guest, so that joiners choose another source.
func (g *guest) Snapshot(limit int, yield func(page []byte, records int) bool) {
	if !g.deaf {
		g.tree.Snapshot(now(), g.names, limit, yield)
	}
}

func (g *guest) SnapshotSize() int {
	if g.deaf {
		return 0
	}
	return g.tree.Anchors(now())
}

func (g *guest) ApplySnapshot(page []byte, shift time.Duration) (gossip.Applied, error) {
	return g.Apply("", page, shift)
}

func (g *guest) Loads(dst []gossip.Load) []gossip.Load {
	for i := range g.names {
		key, _ := g.names.Key(prefixtree.Backend(i))
		dst = append(dst, gossip.Load{Backend: key, PrefillTokens: uint32(g.placed.Load()*131+int64(i)*977) % 20_000, Active: 1})
	}
	return dst
}

func (g *guest) PeerLoad(string, []gossip.Load, bool) {}

func (g *guest) Usage(dst []gossip.Usage) []gossip.Usage { return dst }

func (g *guest) PeerUsage(string, uint64, []gossip.Usage, bool) {}

func (g *guest) Figures(dst []gossip.Figure) []gossip.Figure { return dst }

func (g *guest) PeerFigures(string, uint64, int64, []gossip.Figure, bool) {}

func (g *guest) Claims(dst []byte) []byte { return dst }

func (g *guest) PeerClaims(string, []byte) {}

func (g *guest) DropPeer(string, bool) {}

func (g *guest) State(dst []byte) []byte { return dst }

func (g *guest) PeerState(string, []byte) {}

func (g *guest) Fleet(int, time.Duration) {}
