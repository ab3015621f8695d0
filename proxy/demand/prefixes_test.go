package demand

import (
	"math/rand/v2"
	"slices"
	"testing"

	"grapevine.example/chaos/bubble"
	"grapevine.example/prefixtree"
)

const t0 = prefixtree.Time(1_700_000_000_000)

func TestWorkHasRoomForWhatIsPopular(t *testing.T) {
	var m Prefixes
	held := m.place(1, 1)
	held.begin(1, true, t0)
	for i := range prefixtree.Hash(5000) {
		p := m.place(i+2, 1)
		if p == nil || m.find(i+2) != p {
			t.Fatalf("no place for the prefix %d", i+2)
		}
		p.begin(1, true, t0)
		p.begin(1, true, t0)
		p.end(t0)
		p.end(t0)
	}
	if m.find(1) != held {
		t.Error("a place on which a request ran was taken over")
	}
	m.all.begin(1, true, t0)
	m.all.begin(1, true, t0)
	if told := m.Works(5, t0); len(told) != 1+workTold {
		t.Errorf("told %d", len(told))
	}
	for i := range m.places {
		m.places[i].begin(1, true, t0)
	}
	if len(m.anchors) != workSets*workPlaces || len(m.places) != workSets*workPlaces {
		t.Errorf("%d and %d places", len(m.anchors), len(m.places))
	}
	if m.place(9999, 1) != nil {
		t.Error("a place on which a request ran was taken over")
	}
}

// However short a node's part of the window is, a prefix has no more requests than there are.
func TestSharesAreAtMostOne(t *testing.T) {
	const engines = 16
	h := []prefixtree.Hash{7}
	for _, peers := range []int{0, 99, 499, 2047, 9999} {
		var m Prefixes
		m.SetPeers([]Count{{Requests: 1, Left: peers}}, engines)
		for n := range 5000 {
			m.add(h, 1, engines)
			if p := m.find(7); p == nil || p.seen != m.total || m.total > popularWindow {
				t.Fatalf("%d peers, after %d requests with one prefix: %+v of %v", peers, n+1, p, m.total)
			}
		}
	}
}

// Other nodes' popular prefixes take the place neither of each other nor of what this node finds popular by itself, however many peers count.
func TestPopularPrefixesOfPeersEvictNothingPopular(t *testing.T) {
	const engines, popular, private = 16, 8, 3000
	var m Prefixes
	rnd := rand.New(rand.NewPCG(1, 0))
	counts := []Count{{Requests: 300, Left: 3}}
	var known []prefixtree.Hash
	for range popular {
		h := prefixtree.Hash(rnd.Uint64())
		known = append(known, h)
		counts = append(counts, Count{h, 60, 60})
	}
	own := prefixtree.Hash(rnd.Uint64())
	known = append(known, own)
	for range 24 {
		m.add([]prefixtree.Hash{own}, 1, engines)
	}
	for range private { // prefixes that four prompts left, but few requests have
		counts = append(counts, Count{prefixtree.Hash(rnd.Uint64()), 1, popularLeast})
	}
	for i := range 20 {
		m.SetPeers(counts, engines)
		for range 40 { // the ends of other prompts want places, too
			m.add([]prefixtree.Hash{prefixtree.Hash(rnd.Uint64())}, 1, engines)
		}
		for range 24 {
			m.add([]prefixtree.Hash{own}, 1, engines)
		}
		for _, h := range known {
			if blocks, _ := m.Common([]prefixtree.Hash{h}, 1, engines); blocks != 1 {
				t.Fatalf("exchange %d: %x is not popular any more", i, h)
			}
		}
	}
	used := 0
	for i := range m.places {
		if m.places[i].peers.Left == popularLeast {
			used++
		}
	}
	if used > 0 {
		t.Errorf("%d places are taken by prefixes that are not popular", used)
	}
}

// A faulty peer may report prefixes of no requests.
func TestPrefixesOfNoRequestsAreNotPopular(t *testing.T) {
	var m Prefixes
	m.SetPeers([]Count{{Left: 1}, {Anchor: 7, Left: 255}}, 8)
	if blocks, everywhere := m.Common([]prefixtree.Hash{7}, 1, 8); blocks != 0 || everywhere != 0 {
		t.Errorf("%d and %d blocks", blocks, everywhere)
	}
}

// Where a prefix's requests keep little of an engine busy, others gain nothing by computing it, too, unless they
// are popularMany fair shares.
func TestPopularByWork(t *testing.T) {
	var m Prefixes
	hashes := []prefixtree.Hash{7}
	for range 20 {
		m.Begin(&Request{Hashes: hashes, Known: 1, Engines: 1, TokensPerBlock: 64, Tokens: 640, Uncached: 576, Rate: 1000}, t0)
	}
	for _, c := range []struct {
		busy    float64
		engines int // all requests begin with the prefix, so these are its fair shares, too
		want    int
	}{
		{0, 1, 1}, {1.01 * popularBusy, 1, 1}, {0.99 * popularBusy, 1, 0}, {0, 1, 0}, {1, 1, 1},
		{0.99 * popularBusy, popularMany - 1, 0}, {0.99 * popularBusy, popularMany, 1},
	} {
		m.Begin(&Request{Hashes: hashes, Known: 1, Engines: c.engines, TokensPerBlock: 64, Tokens: 640, Uncached: 576, Rate: 1000, Busy: c.busy}, t0)
		if got, _ := m.Common(hashes, 1, c.engines); got != c.want {
			t.Errorf("%v of %d engines are busy with it: %d blocks are common, want %d", c.busy, c.engines, got, c.want)
		}
	}
}

// Of nested popular prefixes, the deepest with a fair share of the requests counts as held everywhere.
func TestEverywhereByShare(t *testing.T) {
	const engines = 8
	var m Prefixes
	for i := range prefixtree.Hash(220) {
		h := []prefixtree.Hash{1, 2, 3 + i} // block 1: of 95 % of the requests, 2: of 85 %
		switch {
		case i%10 == 0: // of a tenth: nearly 0.8 fair shares
			h[1], h[2] = 1000, 1001
		case i%20 == 1: // of a twentieth
			h[0], h[1] = 2000, 2001
		}
		known := 2
		if i < 20 {
			known = 1
		}
		m.add(h, known, engines)
	}
	for _, c := range []struct {
		hashes             []prefixtree.Hash
		common, everywhere int
	}{
		{[]prefixtree.Hash{1, 2, 3}, 2, 2}, {[]prefixtree.Hash{1, 1000, 1001}, 2, 1}, {[]prefixtree.Hash{2000, 2001, 3}, 0, 0}, {[]prefixtree.Hash{4, 5, 6}, 0, 0},
	} {
		if common, everywhere := m.Common(c.hashes, 3, engines); common != c.common || everywhere != c.everywhere {
			t.Errorf("of %v %d blocks are common and %d everywhere, want %d and %d", c.hashes, common, everywhere, c.common, c.everywhere)
		}
	}
}

// In a fleet that has run for long, what becomes popular is found after as many requests in all as at one node.
func TestNodesLookBackTogether(t *testing.T) {
	bubble.SkipInRace(t)
	const engines, fresh = 8, 7
	after := func(nodes int) (n int) {
		meters := make([]Prefixes, nodes)
		rnd := rand.New(rand.NewPCG(1, 0))
		exchange := func() {
			var sum Report
			for i := range meters {
				sum.Prefixes = append(sum.Prefixes, meters[i].Counts()...)
			}
			for i := range meters {
				others := Report{Prefixes: slices.Clone(sum.Prefixes)}
				for _, c := range meters[i].Counts() {
					others.Prefixes = append(others.Prefixes, Count{c.Anchor, -c.Requests, -c.Left})
				}
				meters[i].SetPeers(summed(others).Prefixes, engines)
			}
		}
		for n = range 20_000 {
			h := prefixtree.Hash(rnd.Uint64() | 1)
			if n > 10_000 && n%2 == 0 {
				h = fresh << 8
			}
			m := &meters[rnd.IntN(nodes)]
			if blocks, _ := m.Common([]prefixtree.Hash{h}, 1, engines); n > 10_000 && blocks == 1 {
				return n - 10_000
			}
			if m.add([]prefixtree.Hash{h}, 1, engines); n%50 == 0 {
				exchange()
			}
		}
		return n
	}
	one, many := after(1), after(20)
	if one > 500 || many > 2*one+100 {
		t.Errorf("popular after %d requests at one node, after %d at 20", one, many)
	}
}

func summed(t Report) Report {
	var sum []Count
	for _, c := range t.Prefixes {
		i := slices.IndexFunc(sum, func(s Count) bool { return s.Anchor == c.Anchor })
		if i < 0 {
			i, sum = len(sum), append(sum, Count{Anchor: c.Anchor})
		}
		sum[i].Requests += c.Requests
		sum[i].Left += c.Left
	}
	t.Prefixes = sum
	return t
}
