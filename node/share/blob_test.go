package share

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

func TestClaimsRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	value := func(most float64) float64 {
		if rnd.IntN(4) == 0 {
			return 0
		}
		return math.Exp2(-15 + rnd.Float64()*(15+math.Log2(most)))
	}
	for range 100 {
		claims := make([]Claim, rnd.IntN(300))
		for i := range claims {
			claims[i] = Claim{uint32(7 * i), Measure{value(maxLRUDistance), value(maxWeight)}, Measure{value(maxRate), value(maxWeight)}}
		}
		sent := slices.Clone(claims)
		rnd.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
		got, err := Parse(appendClaims([]byte{version}, append(sent, sent...)))
		if err != nil || len(got.Claims) != len(claims) {
			t.Fatalf("%d of %d claims: %v", len(got.Claims), len(claims), err)
		}
		near := func(a, b Measure) bool {
			near := func(a, b float64) bool { return a == b || math.Abs(a/b-1) < 1e-3 }
			return near(a.Mean, b.Mean) && near(a.Weight, b.Weight)
		}
		for i, c := range claims {
			if g := got.Claims[i]; g.Key != c.Key || !near(g.LRUDistance, c.LRUDistance) || !near(g.Rate, c.Rate) {
				t.Fatalf("%+v came as %+v", c, g)
			}
		}
	}
}

func TestBlobBounds(t *testing.T) {
	claims := make([]Claim, 70_000)
	for i := range claims {
		claims[i].Key = uint32(i)
	}
	many := appendClaims([]byte{version}, claims)
	if len(many) > MaxBlob {
		t.Errorf("a blob of %d bytes", len(many))
	}
	if got, err := Parse(many); err != nil || len(got.Claims) != layouts[sectionClaims].most {
		t.Errorf("%+v: %v", got, err)
	}
	for v, want := range map[float64]float64{
		math.NaN(): 0, -1: 0, 0: 0, math.Inf(-1): 0, 1: 1, 1e-300: math.Exp2(smallestLog2), math.Inf(1): fromLogCode(math.MaxUint16), 1e300: fromLogCode(math.MaxUint16),
	} {
		if got := fromLogCode(logCode(v)); got != want {
			t.Errorf("%v is sent as %v, want %v", v, got, want)
		}
	}
}

// TestBlobOfANewerNode: longer entries and unknown sections are read over.
func TestBlobOfANewerNode(t *testing.T) {
	want := Claim{7, Measure{1, 2}, Measure{4, 8}}
	entry := appendClaims([]byte{version}, []Claim{want})
	size := byte(layouts[sectionClaims].entry)
	longer := append([]byte{version, 200, 3, 1, 2, 3, sectionClaims, 1 + size + 2, size + 2}, entry[4:]...)
	longer = append(longer, 0xaa, 0xbb)
	got, err := Parse(longer)
	if err != nil || len(got.Claims) != 1 || got.Claims[0] != want {
		t.Fatalf("%+v %v", got, err)
	}
	if got, err := Parse(nil); err != nil || len(got.Claims) != 0 {
		t.Errorf("of a node without measurements: %v %v", got, err)
	}
	works := []demand.Work{{Pool: 3, Anchor: 5, Tokens: 4096, Requests: 4, Prefill: 2, Active: 8, Fresh: 1}, {Pool: 3, Anchor: 6, Tokens: 2048, Requests: 2, Fresh: 64}}
	short := appendPopularity(nil, &Popularity{Works: works})[3:]
	section := []byte{byte(layouts[sectionWork].entry) + 5}
	for e := range slices.Chunk(short, layouts[sectionWork].entry) {
		section = append(append(section, e...), make([]byte, 5)...)
	}
	s, err := Parse(AppendSection([]byte{version}, sectionWork, section))
	if err != nil || len(s.Popularity.Works) != 2 || s.Popularity.Works[0] != works[0] || s.Popularity.Works[1].Fresh != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestBlobOfAnOlderNode: its traffic had sums of requests and of their whole prefills, and was followed by entries of three bytes, or none.
func TestBlobOfAnOlderNode(t *testing.T) {
	head := appendValues(binary.LittleEndian.AppendUint64([]byte{3}, 7), 2, 1, 4, 8)
	for _, section := range [][]byte{head, append(slices.Clone(head), 1, 2, 3, 4, 5, 6)} {
		s, err := Parse(AppendSection([]byte{version}, sectionTraffic, section))
		if err != nil || len(s.Popularity.Traffic) != 1 || s.Popularity.Traffic[0].Rate != 2 || s.Popularity.Traffic[0].Whole != 4 || len(s.Popularity.Traffic[0].Prefixes) != 0 {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// TestPrefixesCountOnce: duplicates are ignored, no prefix has more requests than there are, and without their number none counts.
func TestPrefixesCountOnce(t *testing.T) {
	parse := func(traffic ...demand.Report) []demand.Report {
		t.Helper()
		s, err := Parse(appendPopularity([]byte{version}, &Popularity{Traffic: traffic}))
		if err != nil {
			t.Fatal(err)
		}
		return s.Popularity.Traffic
	}
	all := demand.Count{Requests: 64, Left: 200}
	got := parse(
		demand.Report{Pool: 1, Prefixes: []demand.Count{all, {Anchor: 5, Requests: 128, Left: 9}, {Anchor: 5, Requests: 1, Left: 9}, all, {Anchor: 6, Requests: 32, Left: 1}}},
		demand.Report{Pool: 1, Prefixes: []demand.Count{all, {Anchor: 7, Requests: 1, Left: 1}}},
		demand.Report{Pool: 2, Prefixes: []demand.Count{{Anchor: 5, Requests: 1, Left: 9}}},
		demand.Report{Pool: 3, Prefixes: []demand.Count{{Requests: 1e9}}},
	)
	want := []demand.Count{{Requests: 64, Left: 1}, {Anchor: 5, Requests: 64, Left: 9}, {Anchor: 6, Requests: 32, Left: 1}}
	if len(got) != 3 || !slices.Equal(got[0].Prefixes, want) || len(got[1].Prefixes) != 0 || got[2].Prefixes[0].Requests != maxPrefixSeen {
		t.Errorf("%+v", got)
	}
}

func TestMalformedBlobs(t *testing.T) {
	traffic := func(size byte, rest ...byte) []byte {
		return AppendSection([]byte{version}, sectionTraffic, slices.Concat([]byte{size}, make([]byte, 16), rest))
	}
	for _, blob := range [][]byte{
		{2}, {0, 1, 1, 12}, {1, 1}, {1, 1, 2, 12}, {1, 1, 0}, {1, 1, 2, 12, 0}, {1, 1, 1, 11}, {1, 1, 1, 0},
		{1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, bytes.Repeat([]byte{1}, MaxBlob+1),
		append([]byte{1}, bytes.Repeat([]byte{9, 0}, maxSections+1)...),
		{1, 2, 0}, {1, 2, 1, 1}, traffic(0), traffic(3, 1),
		{1, 3, 0}, {1, 3, 1, 0}, {1, 3, 1, 25}, append([]byte{1, 3, 26, 26}, make([]byte, 25)...)[:29-1],
	} {
		if s, err := Parse(blob); !errors.Is(err, ErrState) || s != nil {
			t.Errorf("% x: %v", blob[:min(len(blob), 20)], err)
		}
	}
}

func FuzzBlob(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendPopularity(appendClaims([]byte{version}, []Claim{{7, Measure{1, 2}, Measure{4, 8}}}), somePopularity(rand.New(rand.NewPCG(1, 0)))))
	f.Fuzz(func(t *testing.T, blob []byte) {
		s, err := Parse(blob)
		if err != nil {
			return
		}
		if len(s.Claims)*layouts[sectionClaims].entry > len(blob) {
			t.Fatalf("%d claims out of %d bytes", len(s.Claims), len(blob))
		}
		for i, c := range s.Claims {
			if i > 0 && s.Claims[i-1].Key >= c.Key {
				t.Fatalf("claims %+v", s.Claims)
			}
			for _, m := range []Measure{c.LRUDistance, c.Rate} {
				if !(m.Mean >= 0 && m.Mean <= maxLRUDistance && m.Weight >= 0 && m.Weight <= maxWeight) {
					t.Fatalf("%+v", c)
				}
			}
		}
		h := &s.Popularity
		for i := range h.Traffic {
			p := &h.Traffic[i]
			if len(p.Prefixes) > layouts[sectionTraffic].most || slices.ContainsFunc(p.Prefixes, func(c demand.Count) bool { return !(c.Requests <= maxPrefixSeen) }) {
				t.Fatalf("%d counts of prefixes: %+v", len(p.Prefixes), p.Prefixes)
			}
			if !(p.Rate <= maxTraffic && p.Prefill <= maxTraffic && p.Whole <= p.Rate*maxTrafficWhole) {
				t.Fatalf("%+v", p)
			}
		}
		for _, w := range h.Works {
			if !(w.Requests <= maxWork && w.Fresh <= w.Requests && w.Prefill <= maxWork && w.Active <= maxWork && w.Tokens <= maxDepth) {
				t.Fatalf("%+v", w)
			}
		}
	})
}

func somePopularity(rnd *rand.Rand) *Popularity {
	h := new(Popularity)
	for range maxSentPools {
		p := demand.Report{Pool: rnd.Uint64(), Rate: 100 * rnd.Float64(), Prefill: 10 * rnd.Float64(), Whole: 500 * rnd.Float64()}
		p.Prefixes = []demand.Count{{Requests: 500 + 1000*rnd.Float64(), Left: 1}}
		for range rnd.IntN(33) {
			p.Prefixes = append(p.Prefixes, demand.Count{Anchor: prefixtree.Hash(rnd.Uint64()), Requests: 500 * rnd.Float64(), Left: 1 + rnd.IntN(500)})
		}
		h.Traffic = append(h.Traffic, p)
		h.Works = append(h.Works, demand.Work{Pool: p.Pool, Requests: 50 * rnd.Float64(), Prefill: 3 * rnd.Float64(), Active: 1 + 30*rnd.Float64()})
		for range 8 {
			h.Works = append(h.Works, demand.Work{
				Fresh: 0.5 * rnd.Float64(),
				Pool:  p.Pool, Anchor: prefixtree.Hash(rnd.Uint64()), Tokens: 1 + 9000*rnd.Float64(), Requests: 50 * rnd.Float64(), Prefill: rnd.Float64(), Active: 9 * rnd.Float64(),
			})
		}
	}
	return h
}

func TestPopularityRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const least = 1.0 / (1 << 16) // smaller values become 0 or this
	near := func(a, b float64) bool { return a == b || math.Abs(a-b) <= max(2e-3*b, least) }
	for range 50 {
		h := somePopularity(rnd)
		blob := appendPopularity(appendClaims([]byte{version}, []Claim{{7, Measure{1, 2}, Measure{4, 8}}}), h)
		s, err := Parse(blob)
		if err != nil || len(s.Claims) != 1 {
			t.Fatalf("%+v: %v", s, err)
		}
		got := &s.Popularity
		if len(got.Traffic) != len(h.Traffic) || len(got.Works) != len(h.Works) {
			t.Fatalf("%d of %d pools and %d of %d works came", len(got.Traffic), len(h.Traffic), len(got.Works), len(h.Works))
		}
		for i, w := range h.Works {
			g := got.Works[i]
			if g.Pool != w.Pool || g.Anchor != w.Anchor || !near(g.Tokens, w.Tokens) || !near(g.Requests, w.Requests) || !near(g.Fresh, min(w.Fresh, g.Requests)) || !near(g.Prefill, w.Prefill) || !near(g.Active, w.Active) {
				t.Fatalf("%+v came as %+v", w, g)
			}
		}
		for i, p := range h.Traffic {
			g := got.Traffic[i]
			if g.Pool != p.Pool || !near(g.Rate, p.Rate) || !near(g.Prefill, p.Prefill) || !near(g.Whole, min(p.Whole, p.Rate*maxTrafficWhole)) ||
				!slices.EqualFunc(g.Prefixes, p.Prefixes, func(a, b demand.Count) bool {
					return a.Anchor == b.Anchor && near(a.Requests, b.Requests) && a.Left == min(b.Left, math.MaxUint8)
				}) {
				t.Fatalf("%+v came as %+v", p, g)
			}
		}
	}
}

// TestWorkCountsOnce: duplicates are ignored, and sections bounded.
func TestWorkCountsOnce(t *testing.T) {
	works := []demand.Work{{Pool: 3, Requests: 4}, {Pool: 3, Anchor: 5, Requests: 2}, {Pool: 3, Anchor: 5, Requests: 64}, {Pool: 3, Requests: 64}, {Pool: 4, Anchor: 5, Requests: 1}}
	s, err := Parse(appendPopularity([]byte{version}, &Popularity{Works: works}))
	if err != nil || len(s.Popularity.Works) != 3 || s.Popularity.Works[0].Requests != 4 || s.Popularity.Works[1].Requests != 2 || s.Popularity.Works[2].Pool != 4 {
		t.Errorf("%+v, %v", s.Popularity.Works, err)
	}
	for i := range 2 * layouts[sectionWork].most {
		works = append(works, demand.Work{Pool: 7, Anchor: prefixtree.Hash(i + 1), Requests: 1})
	}
	if s, err := Parse(appendPopularity([]byte{version}, &Popularity{Works: works})); err != nil || len(s.Popularity.Works) > layouts[sectionWork].most {
		t.Errorf("%d works, %v", len(s.Popularity.Works), err)
	}
}
