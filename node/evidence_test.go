package node

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"grapevine/node/config"
	"grapevine/prefixtree"
)

func TestStateRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	value := func() float64 {
		if rnd.IntN(4) == 0 {
			return 0
		}
		return math.Exp2(rnd.Float64()*60 - 15)
	}
	for range 100 {
		claims := make([]keyedClaim, rnd.IntN(300))
		for i := range claims {
			claims[i] = keyedClaim{rnd.Uint32(), claim{value(), value(), value(), value()}}
		}
		blob := appendState([]byte("before"), claims)[len("before"):]
		got, err := parseState(nil, blob)
		if err != nil || len(got) != len(claims) {
			t.Fatalf("%d of %d claims: %v", len(got), len(claims), err)
		}
		near := func(a, b float64) bool { return a == b || math.Abs(a/b-1) < 1e-3 }
		for i, c := range claims {
			g := got[i]
			if g.key != c.key || !near(g.reach, c.reach) || !near(g.reachWeight, c.reachWeight) || !near(g.rate, c.rate) || !near(g.rateWeight, c.rateWeight) {
				t.Fatalf("%+v came as %+v", c, g)
			}
		}
	}
}

func TestStateBounds(t *testing.T) {
	many := appendState(nil, make([]keyedClaim, 70_000))
	if len(many) > maxStateBytes {
		t.Errorf("a blob of %d bytes", len(many))
	}
	if got, err := parseState(nil, many); err != nil || len(got) != maxClaims {
		t.Errorf("%d claims: %v", len(got), err)
	}
	for v, want := range map[float64]float64{
		math.NaN(): 0, -1: 0, 0: 0, math.Inf(-1): 0, 1: 1, 1e-300: math.Exp2(smallestLog2), math.Inf(1): fromLogCode(math.MaxUint16), 1e300: fromLogCode(math.MaxUint16),
	} {
		if got := fromLogCode(logCode(v)); got != want {
			t.Errorf("%v is told as %v, want %v", v, got, want)
		}
	}
}

func TestStateOfANewerNode(t *testing.T) {
	entry := appendState(nil, []keyedClaim{{7, claim{1, 2, 4, 8}}})
	longer := append([]byte{stateVersion, 200, 3, 1, 2, 3, sectionClaims, 1 + claimBytes + 2, claimBytes + 2}, entry[4:]...)
	longer = append(longer, 0xaa, 0xbb)
	got, err := parseState(nil, longer)
	if err != nil || len(got) != 1 || got[0] != (keyedClaim{7, claim{1, 2, 4, 8}}) {
		t.Fatalf("%+v %v", got, err)
	}
	if got, err := parseState(nil, nil); err != nil || len(got) != 0 {
		t.Errorf("of a node that knows nothing: %v %v", got, err)
	}
	for _, blob := range [][]byte{
		{2}, {0, 1, 1, 12}, {1, 1}, {1, 1, 2, 12}, {1, 1, 0}, {1, 1, 2, 12, 0}, {1, 1, 1, 11}, {1, 1, 1, 0},
		{1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, bytes.Repeat([]byte{1}, maxStateBytes+1),
		append([]byte{1}, bytes.Repeat([]byte{9, 0}, maxStateParts+1)...),
	} {
		if _, err := parseState(nil, blob); !errors.Is(err, errState) {
			t.Errorf("% x: %v", blob[:min(len(blob), 20)], err)
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendState(nil, []keyedClaim{{1, claim{1, 2, 3, 4}}, {2, claim{}}}))
	f.Add([]byte{1, 9, 2, 0, 0, 1, 1, 12})
	f.Fuzz(func(t *testing.T, blob []byte) {
		claims, err := parseState(nil, blob)
		if len(claims)*claimBytes > len(blob) {
			t.Fatalf("%d claims out of %d bytes", len(claims), len(blob))
		}
		for _, c := range claims {
			for _, v := range []float64{c.reach, c.reachWeight, c.rate, c.rateWeight} {
				if !config.Finite(v) || v < 0 {
					t.Fatalf("%+v", c)
				}
			}
		}
		if err != nil || len(claims) > maxClaims {
			return
		}
		again, err := parseState(nil, appendState(nil, claims))
		if err != nil || len(again) != len(claims) {
			t.Fatalf("%v: %d claims became %d", err, len(claims), len(again))
		}
		for i := range claims {
			if claims[i] != again[i] {
				t.Fatalf("%+v became %+v", claims[i], again[i])
			}
		}
	})
}

// TestNoWordOutweighsAll: one node's claims are clamped to plausible evidence and values.
func TestNoWordOutweighsAll(t *testing.T) {
	k := newKnower(t, "a")
	key := prefixtree.BackendKey("a")
	for i, c := range []claim{
		{reach: 1000, reachWeight: 64, rate: 10_000, rateWeight: 30},
		{reach: 1e14, reachWeight: 1e14, rate: 1e14, rateWeight: 1e14},
	} {
		k.PeerState(string(rune('a'+i)), appendState(nil, []keyedClaim{{key, c}}))
	}
	m := k.evidence.meanLocked(key)
	if m.reachWeight > 130 || m.rateWeight > 130 || m.reach > maxClaimedReach || m.rate > maxClaimedRate {
		t.Errorf("%+v", m)
	}
	if r := k.router.Rate(0); r > maxClaimedRate {
		t.Errorf("the engine computes %v tokens/s", r)
	}
	k.DropPeer("b")
	if m := k.evidence.meanLocked(key); math.Abs(m.reach-1000) > 1 || math.Abs(m.rate-10_000) > 10 || math.Abs(m.rateWeight-30) > .1 {
		t.Errorf("what can be has been changed: %+v", m)
	}
}

// TestEvidenceIsTheMeanOfThoseAlive: the mean covers every origin's last claims, in any order.
func TestEvidenceIsTheMeanOfThoseAlive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const backends = 5
	got := make([]claim, backends)
	e := newEvidence(func(key uint32, mean claim) { got[key] = mean })
	alive := map[string]map[uint32]claim{}
	for range 2000 {
		origin := string(rune('a' + rnd.IntN(4)))
		if rnd.IntN(4) == 0 {
			delete(alive, origin)
			e.set(origin, nil)
		} else {
			claims := map[uint32]claim{}
			for b := range uint32(backends) {
				if rnd.IntN(2) == 0 {
					claims[b] = claim{rnd.Float64() * 1e6, math.Exp2(float64(rnd.IntN(40) - 10)), rnd.Float64() * 1e5, float64(rnd.IntN(3))}
				}
			}
			alive[origin] = claims
			e.set(origin, claims)
		}
		for b := range uint32(backends) {
			var want claim
			for _, claims := range alive {
				want.reach += claims[b].reach * claims[b].reachWeight
				want.reachWeight += claims[b].reachWeight
				want.rate += claims[b].rate * claims[b].rateWeight
				want.rateWeight += claims[b].rateWeight
			}
			if want.reachWeight > 0 {
				want.reach /= want.reachWeight
			}
			if want.rateWeight > 0 {
				want.rate /= want.rateWeight
			}
			near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }
			if !near(got[b].reach, want.reach) || !near(got[b].reachWeight, want.reachWeight) || !near(got[b].rate, want.rate) || !near(got[b].rateWeight, want.rateWeight) {
				t.Fatalf("backend %d: %+v, want %+v", b, got[b], want)
			}
		}
	}
}
