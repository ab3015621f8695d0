package prefixtree

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type oneToOne struct{}

func (oneToOne) Key(b Backend) (uint32, bool)       { return uint32(b), true }
func (oneToOne) Backend(key uint32) (Backend, bool) { return Backend(key), key <= 1<<16-1 }

func encode(facts []Fact, names Names) []byte {
	w := encoder{limit: MaxPayload, names: names}
	for len(facts) > 0 {
		n := 1
		for n < len(facts) && facts[0].Kind != Fence {
			f := facts[n]
			if f.Hash = facts[0].Hash; f != facts[0] {
				break
			}
			n++
		}
		if w.head(&facts[0], n) && facts[0].Kind != Fence {
			for _, f := range facts[:n] {
				w.hash(f.Hash)
			}
		}
		facts = facts[n:]
	}
	return w.dst
}

func decode(payload []byte) (facts []Fact, extensions int, err error) {
	var r decoder
	if err := r.begin(payload); err != nil {
		return nil, 0, err
	}
	for {
		more, err := r.next()
		if !more {
			return facts, extensions, err
		}
		f := r.fact
		f.Backend = Backend(r.key)
		if r.skip {
			extensions++
		} else if f.Kind == Fence {
			f.Span = 0
			facts = append(facts, f)
		}
		for hashes := r.hashes; len(hashes) > 0; hashes = hashes[8:] {
			f.Hash = Hash(binary.LittleEndian.Uint64(hashes))
			facts = append(facts, f)
		}
	}
}

func TestDeltaBytes(t *testing.T) {
	facts := []Fact{
		{Hash: 0x1122334455667788, Time: 1000, Backend: 7, Generation: 300, Span: 1},
		{Hash: 0x99, Time: 1000, Backend: 7, Generation: 300, Span: 1},
		{Hash: 1, Time: 1000, Backend: 7, Generation: 300, Span: 4},
		{Hash: 2, Time: 1000, Backend: 7, Generation: 300, Span: 4},
		{Hash: 3, Time: 1000, Backend: 7, Generation: 300, Span: 4},
		{Hash: 4, Time: 1000, Backend: 7, Generation: 300, Span: 4},
		{Hash: 5, Time: 990, Backend: 7, Generation: 300, Span: 2, Kind: Touch},
		{Hash: 6, Time: 990, Backend: 8, Span: 1, Kind: Drop},
		{Hash: 7, Time: 1100, Before: 950, Backend: 8, Span: 1, Kind: Revert},
		{Hash: 8, Time: 1100, Backend: 8, Span: 1, Kind: Revert},
		{Time: 1101, Backend: 8, Kind: Fence},
	}
	want := "01 e807" + // format, base 1000
		"00 07000000 ac02" + // backend 7, generation 300
		"81 8877665544332211 9900000000000000" + // 2 adds
		"31 04 0100000000000000 0200000000000000 0300000000000000 0400000000000000" + // 4 adds of span 4
		"5a 13 0500000000000000" + // a touch of span 2, 10 ms earlier
		"00 08000000 00" +
		"43 0600000000000000" + // a drop
		"4c dc01 9601 0700000000000000" + // a revert, 110 ms later, by 150 ms
		"44 00 0800000000000000" + // a revert to nothing
		"0d 02" // a fence, 1 ms later
	got := encode(facts, oneToOne{})
	if wantBytes, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(want), []byte(" "), nil))); err != nil || !bytes.Equal(got, wantBytes) {
		t.Errorf("%v\n got %x\nwant %x", err, got, wantBytes)
	}
	back, _, err := decode(got)
	if err != nil || !slices.Equal(back, facts) {
		t.Errorf("%v: %+v", err, back)
	}
}

func drawFacts(t *rapid.T) (facts []Fact) {
	base := rapid.Uint64Range(1, uint64(maxTime)).Draw(t, "base")
	for range rapid.IntRange(1, 20).Draw(t, "runs") {
		f := Fact{
			Time:       clampTime(Time(base) + Time(rapid.Int64Range(-1<<44, 1<<44).Draw(t, "time")>>rapid.IntRange(0, 40).Draw(t, "closer"))),
			Generation: rapid.Uint32().Draw(t, "generation") >> rapid.IntRange(0, 31).Draw(t, "smaller"),
			Backend:    Backend(rapid.Uint16().Draw(t, "backend")),
			Span:       uint8(rapid.IntRange(1, maxSpan).Draw(t, "span")),
			Kind:       Kind(rapid.IntRange(0, int(Fence)).Draw(t, "kind")),
		}
		n := rapid.IntRange(1, 300).Draw(t, "length")
		switch f.Kind {
		case Fence:
			f.Span, n = 0, 1
		case Revert:
			f.Before = Time(rapid.Int64Range(0, int64(f.Time)-1).Draw(t, "before"))
		}
		for i := range n {
			if f.Kind != Fence {
				f.Hash = Hash(rapid.Uint64Range(1, 1<<64-1).Draw(t, "first") + uint64(i))
			}
			facts = append(facts, f)
		}
	}
	return facts
}

func TestDeltaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		facts := drawFacts(t)
		back, _, err := decode(encode(facts, oneToOne{}))
		if err != nil || !slices.Equal(back, facts) {
			t.Fatalf("%v: %+v, want %+v", err, back, facts)
		}
	})
}

// Whole records before a fault may be merged.
func TestMalformedDeltas(t *testing.T) {
	const head = "01e807" + "000700000000"
	long := make([]byte, MaxPayload+1)
	long[0], long[1] = deltaFormat, 1
	cases := map[string][]byte{"nothing": nil, "too long": long}
	for name, text := range map[string]string{
		"another format":          "02e807",
		"no base":                 "01",
		"base zero":               "0100",
		"base beyond 44 bits":     "01ffffffffffff7f",
		"base without end":        "01ffffffffffffffffffffff",
		"no backend":              "01e80741" + "0100000000000000",
		"backend cut off":         "01e80700070000",
		"generation of 33 bits":   "01e80700070000008080808010",
		"backend with flags":      "01e80708070000000000",
		"reserved record":         head + "06",
		"extension with flags":    head + "0f00",
		"extension beyond end":    head + "0705aabb",
		"time before the epoch":   head + "49" + "d10f" + "0100000000000000",
		"time beyond 44 bits":     head + "49" + "ffffffffffff7f" + "0100000000000000",
		"time cut off":            head + "4980",
		"hash cut off":            head + "4101000000000000",
		"more hashes than bytes":  head + "c10100000000000000",
		"count of zero":           head + "0100",
		"count to overflow":       head + "01ffffffffffffffff7f",
		"count cut off":           head + "01",
		"hash of zero":            head + "410000000000000000",
		"fence with a count":      head + "45",
		"revert to the future":    head + "44e807" + "0100000000000000",
		"revert without a time":   head + "44",
		"fault after a good fact": head + "410100000000000000" + "06",
	} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(name, err)
		}
		cases[name] = b
	}
	for name, payload := range cases {
		tree := newTree(t, Config{})
		if applied, err := tree.ApplyDelta(payload, oneToOne{}, 0, 2000); !errors.Is(err, ErrDelta) {
			t.Errorf("%s: %+v, %v", name, applied, err)
		}
	}
}

func TestApplyDeltaCounts(t *testing.T) {
	tree := newTree(t, Config{MaxBackends: 4})
	tree.SetGeneration(1, 5, start)
	tree.Forget(2, start)
	facts := []Fact{
		{Hash: 1, Time: start, Backend: 1, Generation: 4, Span: 1}, // of an old generation
		{Hash: 2, Time: start, Backend: 1, Generation: 6, Span: 1}, // of a new one
		{Hash: 3, Time: start, Backend: 2, Span: 1},                // behind the fence
		{Hash: 4, Time: start, Backend: 3, Span: 1},                // good
		{Hash: 5, Time: start - 1_800_001, Backend: 3, Span: 1},    // past retention
		{Hash: 6, Time: start, Backend: 4, Span: 1},                // out of range
		{Hash: 7, Time: start, Backend: 9_999, Span: 1},            // without a name
		{Hash: 8, Time: start, Backend: 9_999, Span: 1},
		{Time: start, Backend: 2, Kind: Fence},                       // known
		{Time: start + 1, Backend: 2, Kind: Fence},                   // news
		{Hash: 9, Time: start + 1e9, Backend: 3, Span: 2},            // at most 5 s ahead
		{Hash: 4, Time: start, Backend: 3, Span: 1},                  // known
		{Hash: 4, Time: start - 9, Backend: 3, Span: 1, Kind: Touch}, // older than known
	}
	payload := encode(facts, keyedUpTo(9_000))
	payload = append(payload, opExtension, 3, 1, 2, 3)
	applied, err := tree.ApplyDelta(payload, keyedUpTo(9_000), 0, start)
	if want := (Applied{Records: 12, News: 4, Unknown: 2, Late: 4}); err != nil || applied != want {
		t.Errorf("%+v, want %+v; %v", applied, want, err)
	}
	if got := heldBy(tree, start)[spot{9, 3}]; got != start+5_000 {
		t.Errorf("a fact from the far future stands at %d", got-start)
	}
	payload = encode([]Fact{{Hash: 20, Time: start - 2_000, Backend: 3, Span: 1}}, oneToOne{})
	if _, err := tree.ApplyDelta(payload, oneToOne{}, 2*time.Second, start); err != nil || heldBy(tree, start)[spot{20, 3}] != start {
		t.Errorf("%v: shifted to %d", err, heldBy(tree, start)[spot{20, 3}]-start)
	}
	for _, shift := range []time.Duration{-1 << 63, 1<<63 - 1} {
		if _, err := tree.ApplyDelta(payload, oneToOne{}, shift, start); err != nil {
			t.Error(err)
		}
	}
	checkShards(t, tree)
}

func TestPlacementsAfterAFenceFromAhead(t *testing.T) {
	const ahead = 400 // ms: too little to be corrected for
	tree, other := newTree(t, Config{}), newTree(t, Config{})
	tree.Record(1, chainOf(t, 1, 20), start, nil)
	fence := other.Forget(1, start+ahead)
	if _, err := tree.ApplyDelta(encode(fence, oneToOne{}), oneToOne{}, 0, start+10); err != nil {
		t.Fatal(err)
	}
	var tr TouchHistory
	chain := chainOf(t, 1, 30)
	news := tree.RecordNews(1, chain, start+100, &tr, nil)
	_, news = tree.LearnNews(1, chain, &tr, 0, start+200, news)
	if tr.depth() != 0 || len(heldBy(tree, start+300)) != 20 || kinds(news)[Add] != 20 || len(news) != 20 {
		t.Errorf("%d blocks believed before, %d anchors held, news %v", tr.depth(), len(heldBy(tree, start+300)), kinds(news))
	}
	if _, err := other.ApplyDelta(encode(news, oneToOne{}), oneToOne{}, 0, start+ahead+300); err != nil {
		t.Fatal(err)
	}
	if got, want := heldBy(other, start+ahead+300), heldBy(tree, start+300); !maps.Equal(got, want) {
		t.Errorf("the other tree holds %d anchors, this one %d", len(got), len(want))
	}
	if _, news = tree.RevertNews(1, chain, &tr, nil); kinds(news)[Revert] != 20 || len(heldBy(tree, start+300)) != 0 {
		t.Errorf("taken back: %v", kinds(news))
	}
}

func TestFenceInAPayload(t *testing.T) {
	tree := newTree(t, Config{})
	payload := encode([]Fact{
		{Hash: 1, Time: start, Backend: 1, Span: 4},
		{Time: start + 1, Backend: 1, Kind: Fence},
		{Hash: 2, Time: start + 2, Backend: 1, Span: 3},
	}, oneToOne{})
	if applied, err := tree.ApplyDelta(payload, oneToOne{}, 0, start+9); err != nil || applied != (Applied{Records: 3, News: 3}) {
		t.Errorf("%+v, %v", applied, err)
	}
	if got := heldBy(tree, start+9); len(got) != 1 || got[spot{2, 1}] != start+2 {
		t.Errorf("%v", got)
	}
	if n := tree.ledgers[1].usage.since(start - 1); n != 3 {
		t.Errorf("%v blocks in use", n)
	}
}

func TestFactDigest(t *testing.T) {
	facts := factsOf(Add, 1, start, 1, 50)
	for i := range facts {
		facts[i].Time += Time(i)
	}
	digest := func(from, to Time, names Names, facts ...Fact) [2]uint64 {
		tree := newTree(t, Config{})
		for _, f := range facts {
			tree.Apply(f)
		}
		count, xor := tree.FactDigest(start+100, from, to, names)
		return [2]uint64{count, xor}
	}
	whole := digest(start, start+50, oneToOne{}, facts...)
	if whole[0] != 50 {
		t.Errorf("%x", whole)
	}
	low, high := digest(start, start+20, oneToOne{}, facts...), digest(start+20, start+50, oneToOne{}, facts...)
	if low[0] != 20 || high[0] != 30 || low[1]^high[1] != whole[1] {
		t.Errorf("parts %x and %x of %x", low, high, whole)
	}
	for name, change := range map[string]func(f *Fact){
		"hash": func(f *Fact) { f.Hash++ }, "backend": func(f *Fact) { f.Backend++ }, "time": func(f *Fact) { f.Time++ },
	} {
		other := append([]Fact(nil), facts...)
		change(&other[49])
		if d := digest(start, start+100, oneToOne{}, other...); d[0] != 50 || d[1] == whole[1] {
			t.Errorf("%s: %x", name, d)
		}
	}
	if d := digest(start, start+50, keyedUpTo(1), facts...); d != [2]uint64{} {
		t.Errorf("without names: %x", d)
	}
	tree := newTree(t, Config{})
	for i, f := range facts {
		f.Backend += Backend(i % 3)
		tree.Apply(f)
	}
	count, xor := tree.FactDigest(start+100, 0, start+50, oneToOne{})
	var sum FactSum
	apart := tree.FactDigests(start+100, oneToOne{})
	for _, s := range apart {
		sum.Count += s.Count
		sum.XOR ^= s.XOR
	}
	if len(apart) != 3 || sum != (FactSum{count, xor}) || count != 50 || apart[1].Count != 17 {
		t.Errorf("%x apart, %x together", apart, FactSum{count, xor})
	}
	if d := tree.FactDigests(start+100, keyedUpTo(2)); len(d) != 1 || d[1] != apart[1] {
		t.Errorf("one backend with a name: %x", d)
	}
}

type keyedUpTo Backend

func (k keyedUpTo) Key(b Backend) (uint32, bool)       { return uint32(b), b < Backend(k) }
func (k keyedUpTo) Backend(key uint32) (Backend, bool) { return Backend(key), key < uint32(k) }

func TestDeltaSize(t *testing.T) {
	tree, out := newTree(t, Config{}), NewOutbox(0)
	for i := range 20 {
		out.Add(tree.RecordNews(Backend(i), chainOf(t, uint64(i+1), 60+i), start+Time(i), nil, nil))
	}
	payload, records := out.Drain(nil, MaxPayload, oneToOne{})
	if perFact := float64(len(payload)) / float64(records); perFact > 8.6 {
		t.Errorf("%.2f bytes a fact", perFact)
	}
}

// A node that receives a placement counts the same usage.
func TestSpanOnTheWire(t *testing.T) {
	for _, blocks := range []int{1, 16, 17, 18, 19, 20, 50, 255} {
		local, remote, third := newTree(t, Config{}), newTree(t, Config{}), newTree(t, Config{})
		out := NewOutbox(0)
		out.Add(local.RecordNews(1, chainOf(t, 1, blocks), start, nil, nil))
		payload, _ := out.Drain(nil, MaxPayload, oneToOne{})
		if _, err := remote.ApplyDelta(payload, oneToOne{}, 0, start); err != nil {
			t.Fatal(err)
		}
		remote.Snapshot(start, oneToOne{}, MaxPayload, func(page []byte, _ int) bool {
			if _, err := third.ApplyDelta(page, oneToOne{}, 0, start); err != nil {
				t.Error(err)
			}
			return true
		})
		for name, tree := range map[string]*Tree{"local": local, "remote": remote, "third": third} {
			if n := tree.ledgers[1].usage.since(start - 1); n != float64(blocks) {
				t.Errorf("%s: %v blocks in use, want %d", name, n, blocks)
			}
		}
	}
}

// Any bytes leave the structure sound and within its budget.
func FuzzApplyDelta(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	var facts []Fact
	for i := range 60 {
		facts = append(facts, Fact{
			Hash: Hash(r.Uint64() | 1), Time: start + Time(i/7), Backend: Backend(i / 20), Span: uint8(1 + i%4), Kind: Kind(i / 3 % 4),
		})
	}
	f.Add(encode(facts, oneToOne{}))
	f.Add(encode([]Fact{{Hash: 1, Time: start, Span: 1}, {Time: start, Kind: Fence}, {Hash: 2, Time: start + 1, Before: start, Span: 1, Kind: Revert}}, oneToOne{}))
	f.Add([]byte{deltaFormat, 0xe8, 7, opExtension, 2, 1, 1})
	f.Fuzz(func(t *testing.T, payload []byte) {
		const backends, budget = 6, 64 << 10
		tree, err := New(Config{MaxBackends: backends, Budget: budget, Horizon: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		chain := fuzzChain(1, 40, 20)
		tree.Record(1, chain, start, nil)
		applied, news, err := tree.ApplyDeltaNews(payload, oneToOne{}, time.Second, start, nil)
		if err != nil && !errors.Is(err, ErrDelta) {
			t.Fatal(err)
		}
		if applied.News+applied.Unknown+applied.Late > applied.Records || applied.Records > len(payload) || len(news) > applied.News {
			t.Fatalf("%d bytes: %+v, %d news", len(payload), applied, len(news))
		}
		checkShards(t, tree)
		if st := tree.Stats(); st.Bytes > budget {
			t.Fatalf("%+v", st)
		}
		for p, at := range heldBy(tree, start) {
			if at > start+maxAhead || int(p.Backend) >= backends || p.Hash == 0 {
				t.Fatalf("holds %+v at %d", p, at-start)
			}
		}
		other := newTree(t, Config{MaxBackends: backends})
		tree.Snapshot(start, oneToOne{}, MinPayload+20, func(page []byte, records int) bool {
			if applied, err := other.ApplyDelta(page, oneToOne{}, 0, start); err != nil || applied.Records != records {
				t.Fatalf("own page refused: %+v of %d, %v", applied, records, err)
			}
			return true
		})
	})
}

// Whatever decodes is encoded again to what decodes the same.
func FuzzDeltaForm(f *testing.F) {
	f.Add([]byte{deltaFormat, 0xe8, 7, 0, 7, 0, 0, 0, 0, 0x41, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add(encode([]Fact{{Hash: 5, Time: start, Span: 3, Generation: 9}, {Time: start + 5, Kind: Fence}}, oneToOne{}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		facts, _, err := decode(payload)
		if err != nil {
			return
		}
		again, _, err := decode(encode(facts, oneToOne{}))
		if len(facts) == 0 && errors.Is(err, ErrDelta) {
			return // an empty payload is malformed
		}
		if err != nil || !slices.Equal(facts, again) {
			t.Fatalf("%v: %+v, was %+v", err, again, facts)
		}
	})
}
