package node

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// someHeat is heat of the largest size that is sent.
func someHeat(rnd *rand.Rand) *policy.Heat {
	h := &policy.Heat{Requests: 1 + 1000*rnd.Float64()}
	for range heatAnchors {
		h.Anchors = append(h.Anchors, policy.HotAnchor{Hash: prefixtree.Hash(rnd.Uint64()), Count: h.Requests * rnd.Float64()})
	}
	for range heatPaces {
		p := policy.Pace{Pool: rnd.Uint64(), Rate: 100 * rnd.Float64(), Demand: 10 * rnd.Float64(), Work: 500 * rnd.Float64()}
		for i := range p.Soonest {
			if rnd.IntN(2) == 0 {
				p.Soonest[i] = 1 + 10*rnd.Float64()
				p.Requests += p.Soonest[i]
			}
		}
		p.Requests *= 1.01 // encoding rounds
		h.Paces = append(h.Paces, p)
		h.Works = append(h.Works, policy.Work{Pool: p.Pool, Requests: 50 * rnd.Float64(), Prefill: 3 * rnd.Float64(), Active: 1 + 30*rnd.Float64()})
		for range 8 {
			h.Works = append(h.Works, policy.Work{
				Fresh: 0.5 * rnd.Float64(),
				Pool:  p.Pool, Anchor: prefixtree.Hash(rnd.Uint64()), Tokens: 1 + 9000*rnd.Float64(), Requests: 50 * rnd.Float64(), Prefill: rnd.Float64(), Active: 9 * rnd.Float64(),
			})
		}
	}
	return h
}

func TestHeatRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const least = 1.0 / (1 << 16) // smaller values become 0 or this
	near := func(a, b float64) bool { return a == b || math.Abs(a-b) <= max(2e-3*b, least) }
	for range 50 {
		h := someHeat(rnd)
		blob := appendHeat(appendState(nil, []keyedClaim{{7, claim{1, 2, 4, 8}}}), h)
		claims, err := parseState(nil, blob)
		if err != nil || len(claims) != 1 {
			t.Fatalf("%d claims beside the heat: %v", len(claims), err)
		}
		got, err := parseHeat(blob)
		if err != nil || len(got.Anchors) != len(h.Anchors) || len(got.Paces) != len(h.Paces) || !near(got.Requests, h.Requests) {
			t.Fatalf("%d anchors and %d paces: %v", len(got.Anchors), len(got.Paces), err)
		}
		for i, a := range h.Anchors {
			if g := got.Anchors[i]; g.Hash != a.Hash || !near(g.Count, a.Count) {
				t.Fatalf("%+v came as %+v", a, g)
			}
		}
		if len(got.Works) != len(h.Works) {
			t.Fatalf("%d of %d works came", len(got.Works), len(h.Works))
		}
		for i, w := range h.Works {
			g := got.Works[i]
			if g.Pool != w.Pool || g.Anchor != w.Anchor || !near(g.Tokens, w.Tokens) || !near(g.Requests, w.Requests) || !near(g.Fresh, min(w.Fresh, g.Requests)) || !near(g.Prefill, w.Prefill) || !near(g.Active, w.Active) {
				t.Fatalf("%+v came as %+v", w, g)
			}
		}
		for i, p := range h.Paces {
			g := got.Paces[i]
			if g.Pool != p.Pool || !near(g.Rate, p.Rate) || !near(g.Demand, p.Demand) || !near(g.Requests, p.Requests) || !near(g.Work, p.Work) {
				t.Fatalf("%+v came as %+v", p, g)
			}
			for b := range p.Soonest {
				if !near(g.Soonest[b], p.Soonest[b]) {
					t.Fatalf("bucket %d: %v came as %v", b, p.Soonest[b], g.Soonest[b])
				}
			}
		}
	}
}

// TestWorkCountsOnce: duplicates are ignored, and sections bounded.
func TestWorkCountsOnce(t *testing.T) {
	works := []policy.Work{{Pool: 3, Requests: 4}, {Pool: 3, Anchor: 5, Requests: 2}, {Pool: 3, Anchor: 5, Requests: 64}, {Pool: 3, Requests: 64}, {Pool: 4, Anchor: 5, Requests: 1}}
	h, err := parseHeat(appendHeat(appendState(nil, nil), &policy.Heat{Works: works}))
	if err != nil || len(h.Works) != 3 || h.Works[0].Requests != 4 || h.Works[1].Requests != 2 || h.Works[2].Pool != 4 {
		t.Errorf("%+v, %v", h.Works, err)
	}
	for i := range 2 * maxWorks {
		works = append(works, policy.Work{Pool: 7, Anchor: prefixtree.Hash(i + 1), Requests: 1})
	}
	if h, err := parseHeat(appendHeat(appendState(nil, nil), &policy.Heat{Works: works})); err != nil || len(h.Works) != maxWorks {
		t.Errorf("%d works, %v", len(h.Works), err)
	}
}

// TestWorkOfOtherVersions: Fresh may be absent and is bounded, and entries may grow.
func TestWorkOfOtherVersions(t *testing.T) {
	works := []policy.Work{{Pool: 3, Anchor: 5, Tokens: 4096, Requests: 4, Prefill: 2, Active: 8, Fresh: 1}, {Pool: 3, Anchor: 6, Tokens: 2048, Requests: 2, Fresh: 64}}
	blob := appendHeat(appendState(nil, nil), &policy.Heat{Works: works})
	section := sectionOf(blob, sectionWork)
	for size, fresh := range map[int][2]float64{workBytesOld: {4, 2}, workBytes: {1, 2}, workBytes + 5: {1, 2}} {
		other := []byte{byte(size)}
		for i := range works {
			entry := append(slices.Clone(section[1+i*workBytes:1+(i+1)*workBytes]), make([]byte, 5)...)
			other = append(other, entry[:size]...)
		}
		h, err := parseHeat(appendSection(appendState(nil, nil), sectionWork, other))
		if err != nil || len(h.Works) != 2 || h.Works[0].Fresh != fresh[0] || h.Works[1].Fresh != fresh[1] || h.Works[1].Anchor != 6 {
			t.Errorf("entries of %d bytes: %+v, %v", size, h.Works, err)
		}
	}
	for _, bad := range [][]byte{{}, {0}, {workBytesOld - 1}, append([]byte{workBytes}, 1)} {
		if h, err := parseHeat(appendSection(appendState(nil, nil), sectionWork, bad)); err == nil {
			t.Errorf("%v is read as %+v", bad, h)
		}
	}
}

// TestHeatIsSmall: the heat of one node takes at most 4 KiB.
func TestHeatIsSmall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 0))
	h := someHeat(rnd)
	h.Works = h.Works[:9]    // of one pool
	for i := range h.Paces { // a prompt of each length
		for b := range h.Paces[i].Soonest {
			h.Paces[i].Soonest[b] = 1
		}
	}
	if n := len(appendHeat(nil, h)); n > 5<<10 {
		t.Errorf("%d bytes with every bucket of every pool", n)
	}
	for i := range h.Paces { // 1 ms to a minute
		clear(h.Paces[i].Soonest[48:])
	}
	if n := len(appendHeat(nil, h)); n > 4<<10 {
		t.Errorf("%d bytes", n)
	}
	k := newKnower(t, "a", "b")
	var a policy.Attempt
	for i := range 3 * heatAnchors {
		k.serve(t, &a, chain(i, 20), 0)
	}
	got, err := parseHeat(k.State(nil))
	if err != nil || len(got.Anchors) != 0 || len(got.Paces) != 1 {
		t.Errorf("%d anchors and %d paces: %v", len(got.Anchors), len(got.Paces), err)
	}
}

func TestMalformedHeat(t *testing.T) {
	for _, blob := range [][]byte{
		{1, 2, 0}, {1, 2, 2, 10, 0}, {1, 2, 4, 10, 0, 0, 1}, {1, 2, 3, 9, 0, 0}, {1, 3, 0}, {1, 3, 1, 1},
		append(append([]byte{1, 3, 19}, make([]byte, 16)...), 200, 1, 1), append([]byte{1, 3, 17}, make([]byte, 17)...),
		{1, 5, 0}, {1, 5, 1, 23}, append([]byte{1, 5, 24, 24}, make([]byte, 23)...),
	} {
		if _, err := parseHeat(blob); !errors.Is(err, errState) {
			t.Errorf("% x: %v", blob, err)
		}
	}
	k := newKnower(t, "a")
	k.PeerState("b", []byte{1, 2, 0})
	if k.malformed.Load() != 1 {
		t.Error("a blob that cannot be read was not counted")
	}
}

func FuzzHeat(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendHeat(appendState(nil, nil), someHeat(rand.New(rand.NewPCG(1, 0)))))
	f.Fuzz(func(t *testing.T, blob []byte) {
		h, err := parseHeat(blob)
		if err != nil {
			return
		}
		if len(h.Anchors)*anchorBytes > len(blob) || len(h.Anchors) > maxAnchors || h.Requests > maxRequests {
			t.Fatalf("%v requests, %d anchors", h.Requests, len(h.Anchors))
		}
		for _, a := range h.Anchors {
			if !(a.Count >= 0 && a.Count <= h.Requests) {
				t.Fatalf("%+v of %v", a, h.Requests)
			}
		}
		for i := range h.Paces {
			p, sum := &h.Paces[i], 0.0
			for _, n := range p.Soonest {
				sum += n
			}
			if !(p.Rate <= maxPace && p.Demand <= maxPace && p.Requests <= maxPaceSeen && p.Work <= p.Requests*maxPaceWhole && sum <= p.Requests*(1+1e-9)) {
				t.Fatalf("%+v", p)
			}
		}
	})
}
