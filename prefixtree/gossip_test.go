package prefixtree

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// keyed gives nodes different ids for the same backends.
type keyed struct {
	backends Backend
	reverse  bool
}

func (k keyed) flip(b Backend) Backend {
	if k.reverse {
		return k.backends - 1 - b
	}
	return b
}

func (k keyed) Key(b Backend) (uint32, bool) { return 0xbac0000 + uint32(k.flip(b)), b < k.backends }

func (k keyed) Backend(key uint32) (Backend, bool) {
	b := Backend(key)
	if key < 0xbac0000 || key >= 0xbac0000+uint32(k.backends) {
		return 0, false
	}
	return k.flip(b), true
}

type peer struct {
	tree   *Tree
	names  keyed
	outbox *Outbox
	inbox  [][]byte
	news   []Fact
}

func newPeers(t *rapid.T, n, backends int, horizon time.Duration) []*peer {
	peers := make([]*peer, n)
	for i := range peers {
		tree, err := New(Config{Horizon: horizon, MaxBackends: backends, Budget: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		peers[i] = &peer{tree: tree, names: keyed{Backend(backends), i%2 == 1}, outbox: NewOutbox(0)}
	}
	return peers
}

func (p *peer) id(b Backend) Backend { return p.names.flip(b) }

func (p *peer) tell() {
	p.outbox.Add(p.news)
	p.news = p.news[:0]
}

func (p *peer) send(t *rapid.T, peers []*peer, limit int) (sent bool) {
	payload, records := p.outbox.Drain(nil, limit, p.names)
	if len(payload) > limit || (records > 0) != (len(payload) > 0) {
		t.Fatalf("%d bytes with %d records, at most %d bytes", len(payload), records, limit)
	}
	for _, other := range peers {
		if other != p && records > 0 {
			other.inbox = append(other.inbox, payload)
		}
	}
	return records > 0
}

// receive merges the i-th message; keep leaves it for repetition.
func (p *peer) receive(t *rapid.T, i int, now Time, keep bool) {
	_, news, err := p.tree.ApplyDeltaNews(p.inbox[i], p.names, 0, now, p.news)
	if err != nil {
		t.Fatal(err)
	}
	if !keep {
		p.inbox[i] = p.inbox[len(p.inbox)-1]
		p.inbox = p.inbox[:len(p.inbox)-1]
	}
	p.news = news
	p.tell()
}

func settle(t *rapid.T, peers []*peer, now Time) {
	for round := 0; ; round++ {
		if round > 100 {
			t.Fatal("they go on telling each other: an echo")
		}
		quiet := true
		for _, p := range peers {
			for p.send(t, peers, 1<<16) {
				quiet = false
			}
		}
		for _, p := range peers {
			for len(p.inbox) > 0 {
				p.receive(t, rapid.IntRange(0, len(p.inbox)-1).Draw(t, "left"), now, false)
				quiet = false
			}
		}
		if quiet {
			return
		}
	}
}

func heldByPeer(p *peer, now Time) held {
	m := held{}
	for at, when := range heldBy(p.tree, now) {
		m[spot{at.Hash, p.id(at.Backend)}] = when
	}
	return m
}

// News may arrive late, twice and out of order.
func TestTreesConverge(t *testing.T) {
	const backends = 3
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		peers := newPeers(t, 4, backends, time.Second)
		latest, anchors := held{}, map[spot]bool{}
		place := func(b Backend, chain []Hash, at Time) {
			for i, h := range chain {
				p := spot{h, b}
				latest[p] = max(latest[p], at)
				anchors[p] = anchors[p] || isAnchor(i+1, len(chain))
			}
		}
		// Times are further apart than the grain, and none outlives its retention.
		const step, steps = 20, 100
		end := start + step*steps + 500
		any := func() *peer { return peers[rapid.IntRange(0, len(peers)-1).Draw(t, "peer")] }
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				p, b, chain := any(), Backend(rapid.IntRange(0, backends-1).Draw(t, "backend")), modelChain(t, hasher)
				at := start + step*Time(rapid.IntRange(0, steps).Draw(t, "at"))
				stay := step * Time(rapid.IntRange(0, 3).Draw(t, "stay"))
				var tr TouchHistory
				p.news = p.tree.RecordNews(p.id(b), chain, at, &tr, p.news)
				_, p.news = p.tree.LearnNews(p.id(b), chain, &tr, -1, at+stay, p.news)
				p.tell()
				place(b, chain, at)
				place(b, chain, at+stay)
			},
			"send": func(t *rapid.T) { any().send(t, peers, rapid.IntRange(MinPayload, 2_000).Draw(t, "bytes")) },
			"receive": func(t *rapid.T) {
				if p := any(); len(p.inbox) > 0 {
					p.receive(t, rapid.IntRange(0, len(p.inbox)-1).Draw(t, "which"), end, rapid.Bool().Draw(t, "twice"))
				}
			},
		})
		settle(t, peers, end)
		want := held{}
		for p := range anchors {
			if anchors[p] {
				want[p] = latest[p]
			}
		}
		count, xor := peers[0].tree.FactDigest(end, start, end, peers[0].names)
		for i, p := range peers {
			if got := heldByPeer(p, end); !maps.Equal(got, want) {
				t.Fatalf("peer %d holds %d anchors, want %d: %s", i, len(got), len(want), difference(got, want))
			}
			if n, x := p.tree.FactDigest(end, start, end, p.names); n != count || x != xor || n != uint64(len(want)) {
				t.Fatalf("peer %d: digest %d %x, first %d %x", i, n, x, count, xor)
			}
			checkShards(t, p.tree)
		}
	})
}

func TestTreesConvergeOnRetractions(t *testing.T) {
	const backends = 3
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		peers := newPeers(t, 3, backends, 5*time.Minute) // no fact outlives its retention
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "rounds") {
			p := peers[rapid.IntRange(0, len(peers)-1).Draw(t, "peer")]
			for range rapid.IntRange(1, 4).Draw(t, "calls") {
				now += Time(rapid.IntRange(1, 6_000).Draw(t, "wait"))
				b, chain := p.id(Backend(rapid.IntRange(0, backends-1).Draw(t, "backend"))), modelChain(t, hasher)
				var tr TouchHistory
				switch rapid.IntRange(0, 4).Draw(t, "what") {
				case 0, 1:
					p.news = p.tree.RecordNews(b, chain, now, &tr, p.news)
					_, p.news = p.tree.LearnNews(b, chain, &tr, len(chain), now+3_000, p.news)
					now += 3_000
				case 2:
					p.news = p.tree.RecordNews(b, chain, now, &tr, p.news)
					_, p.news = p.tree.RevertNews(b, chain, &tr, p.news)
				case 3:
					p.news = append(p.news, p.tree.Drop(b, chain, rapid.IntRange(0, len(chain)).Draw(t, "from"), now)...)
				case 4:
					p.news = append(p.news, p.tree.Forget(b, now)...)
				}
				p.tell()
			}
			for p.send(t, peers, 500) {
			}
			for _, other := range peers {
				for _, payload := range other.inbox {
					applied, news, err := other.tree.ApplyDeltaNews(payload, other.names, 0, now, nil)
					if err != nil || applied.Unknown > 0 {
						t.Fatal(applied, err)
					}
					other.news = news
					other.tell()
				}
				other.inbox = other.inbox[:0]
			}
			settle(t, peers, now)
			want := heldByPeer(peers[0], now)
			for i, p := range peers {
				if got := heldByPeer(p, now); !maps.Equal(got, want) {
					t.Fatalf("peer %d holds %d anchors, the first %d: %s", i, len(got), len(want), difference(got, want))
				}
			}
		}
	})
}

// Placements cross retractions of other nodes on their way: each node's changes arrive in order, but
// those of different nodes in any.
func TestTreesConvergeOnCrossingRetractions(t *testing.T) {
	const backends = 2
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		peers := newPeers(t, 3, backends, 5*time.Minute)
		wires := map[[2]int][][]byte{} // from, to
		now := start
		send := func(from int) {
			p := peers[from]
			p.tell()
			for {
				payload, records := p.outbox.Drain(nil, 1<<16, p.names)
				if records == 0 {
					return
				}
				for to := range peers {
					if to != from {
						wires[[2]int{from, to}] = append(wires[[2]int{from, to}], payload)
					}
				}
			}
		}
		deliver := func(t *rapid.T) bool {
			var full [][2]int
			for from := range peers {
				for to := range peers {
					if len(wires[[2]int{from, to}]) > 0 {
						full = append(full, [2]int{from, to})
					}
				}
			}
			if len(full) == 0 {
				return false
			}
			wire := rapid.SampledFrom(full).Draw(t, "wire")
			p := peers[wire[1]]
			_, news, err := p.tree.ApplyDeltaNews(wires[wire][0], p.names, 0, now, p.news)
			if err != nil {
				t.Fatal(err)
			}
			wires[wire], p.news = wires[wire][1:], news
			send(wire[1])
			return true
		}
		type running struct {
			peer  int
			b     Backend
			chain []Hash
			tr    TouchHistory
		}
		var open []*running
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				now += Time(rapid.IntRange(1, 6_000).Draw(t, "wait"))
				i := rapid.IntRange(0, len(peers)-1).Draw(t, "peer")
				r := &running{peer: i, b: peers[i].id(Backend(rapid.IntRange(0, backends-1).Draw(t, "backend"))), chain: modelChain(t, hasher)}
				peers[i].news = peers[i].tree.RecordNews(r.b, r.chain, now, &r.tr, peers[i].news)
				open = append(open, r)
				send(i)
			},
			"end": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				now += Time(rapid.IntRange(1, 6_000).Draw(t, "wait"))
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				r := open[i]
				open = append(open[:i], open[i+1:]...)
				p := peers[r.peer]
				if rapid.Bool().Draw(t, "fails") {
					_, p.news = p.tree.RevertNews(r.b, r.chain, &r.tr, p.news)
				} else {
					_, p.news = p.tree.LearnNews(r.b, r.chain, &r.tr, -1, now, p.news)
				}
				send(r.peer)
			},
			"deliver": func(t *rapid.T) { deliver(t) },
		})
		for deliver(t) {
		}
		want := heldByPeer(peers[0], now)
		for i, p := range peers {
			if got := heldByPeer(p, now); !maps.Equal(got, want) {
				t.Fatalf("peer %d holds %d anchors, the first %d: %s", i, len(got), len(want), difference(got, want))
			}
		}
	})
}

// An earlier failure does not make a later one forget the placements between them.
func TestRetractionsStayApart(t *testing.T) {
	tree, chain := newTree(t, Config{Horizon: time.Hour}), chainOf(t, 1, 4)
	var tr TouchHistory
	record := func(at Time) { tree.RecordNews(1, chain, start+at, &tr, nil) }
	record(1_000)
	tree.RevertNews(1, chain, &tr, nil)
	record(1_000_000)
	tree.LearnNews(1, chain, &tr, 0, start+1_001_000, nil)
	record(2_000_000)
	tree.RevertNews(1, chain, &tr, nil)
	for p, at := range heldBy(tree, start+2_000_000) {
		if at != start+1_000_000 {
			t.Errorf("%x: held at %d", p.Hash, at-start)
		}
	}
	if n := len(heldBy(tree, start+2_000_000)); n != len(chain) {
		t.Errorf("%d of %d blocks are held", n, len(chain))
	}
}
