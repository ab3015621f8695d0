package prefixtree

import (
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func factsOf(kind Kind, b Backend, at Time, first, n int) []Fact {
	facts := make([]Fact, n)
	for i := range facts {
		facts[i] = Fact{Hash: Hash(first + i), Time: at, Backend: b, Span: 1, Kind: kind}
	}
	return facts
}

func drained(t interface{ Fatal(...any) }, o *Outbox, limit int) (facts []Fact) {
	for {
		payload, records := o.Drain(nil, limit, oneToOne{})
		if records == 0 {
			return facts
		}
		got, _, err := decode(payload)
		if err != nil || len(got) != records || len(payload) > limit {
			t.Fatal(len(payload), "bytes,", len(got), "of", records, "records:", err)
		}
		facts = append(facts, got...)
	}
}

func TestOutboxOrder(t *testing.T) {
	touches, adds := factsOf(Touch, 1, start, 1, 5), factsOf(Add, 2, start, 100, 70)
	reverted := []Fact{{Hash: 169, Time: start, Backend: 2, Span: 1, Kind: Revert}}
	back := []Fact{{Hash: 1, Time: start, Before: start - 9, Backend: 1, Span: 1, Kind: Revert}}
	drops := factsOf(Drop, 3, start, 7, 2)
	fence := []Fact{{Time: start - 5, Backend: 9, Kind: Fence}}
	for _, limit := range []int{MinPayload, MinPayload + 50, 1 << 16} {
		o := NewOutbox(0)
		for _, news := range [][]Fact{touches, drops, adds, back, reverted, fence, nil} {
			o.Add(news)
		}
		o.Add([]Fact{{Time: start - 7, Backend: 9, Kind: Fence}}) // older than the one waiting
		want := slices.Concat(fence, adds, reverted, touches, drops, back)
		if st := o.Stats(); st.Pending != len(want) {
			t.Errorf("%+v", st)
		}
		if got := drained(t, o, limit); !slices.Equal(got, want) {
			t.Errorf("limit %d: %+v", limit, got)
		}
		if st := o.Stats(); st != (OutboxStats{Sent: uint64(len(want))}) {
			t.Errorf("%+v", st)
		}
	}
	o := NewOutbox(0)
	o.Add(adds)
	if payload, n := o.Drain([]byte("kept"), MinPayload-1, oneToOne{}); string(payload) != "kept" || n != 0 {
		t.Errorf("%q with %d records in no room", payload, n)
	}
	payload, n := o.Drain([]byte("kept"), MinPayload, oneToOne{})
	if facts, _, err := decode(payload[4:]); string(payload[:4]) != "kept" || err != nil || !slices.Equal(facts, adds[:n]) || n == 0 {
		t.Errorf("%q, %d: %+v, %v", payload, n, facts, err)
	}
}

func TestOutboxFencesInOrder(t *testing.T) {
	const backends = 40
	var want []Fact
	for b := range Backend(backends) {
		want = append(want, Fact{Time: start + Time(b), Backend: b, Kind: Fence})
	}
	for _, limit := range []int{MinPayload, 1 << 16} {
		o := NewOutbox(0)
		for i := range want {
			o.Add(want[i*7%backends:][:1])
		}
		if got := drained(t, o, limit); !slices.Equal(got, want) {
			t.Errorf("limit %d: %+v", limit, got)
		}
	}
}

func TestOutboxLosesWhatIsWorthLeast(t *testing.T) {
	o := NewOutbox(10)
	o.Add(factsOf(Touch, 1, start, 1, 6))
	o.Add(factsOf(Drop, 1, start, 7, 2))
	o.Add(factsOf(Add, 1, start+1, 100, 4)) // 2 touches go
	o.Add(factsOf(Add, 1, start+2, 200, 5)) // the other 4 touches and a drop go
	if st := o.Stats(); st.LostTouches != 6 || st.LostDrops != 1 || st.LostAdds != 0 || st.Pending != 10 {
		t.Errorf("%+v", st)
	}
	o.Add(factsOf(Add, 1, start+3, 300, 2))   // the other drop and the oldest placement go
	o.Add(factsOf(Touch, 1, start+3, 400, 4)) // 3 find room, one replaces another touch
	if st := o.Stats(); st.LostTouches != 7 || st.LostDrops != 2 || st.LostAdds != 4 || st.Pending != 10 {
		t.Errorf("%+v", st)
	}
	want := slices.Concat(factsOf(Add, 1, start+2, 200, 5), factsOf(Add, 1, start+3, 300, 2), factsOf(Touch, 1, start+3, 401, 3))
	if got := drained(t, o, 1<<16); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	o = NewOutbox(10)
	o.Add(factsOf(Add, 1, start, 1, 15))
	o.Add(factsOf(Touch, 1, start, 50, 1))
	if got := drained(t, o, 1<<16); !slices.Equal(got, factsOf(Add, 1, start, 1, 10)) {
		t.Errorf("%+v", got)
	}
	if st := o.Stats(); st.LostAdds != 5 || st.LostTouches != 1 {
		t.Errorf("%+v", st)
	}
}

func TestOutboxSkipsTheNameless(t *testing.T) {
	o := NewOutbox(0)
	for b := range Backend(4) {
		o.Add(factsOf(Add, b, start, 10*int(b), 3))
		o.Add([]Fact{{Time: start, Backend: b, Kind: Fence}})
	}
	payload, n := o.Drain(nil, 1<<16, keyedUpTo(2))
	if facts, _, err := decode(payload); err != nil || len(facts) != 8 || n != 8 {
		t.Errorf("%d: %+v, %v", n, facts, err)
	}
	if st := o.Stats(); st != (OutboxStats{Sent: 8, Unnamed: 8}) {
		t.Errorf("%+v", st)
	}
	o.Add(factsOf(Add, 3, start, 1, 3))
	if payload, n := o.Drain(nil, 1<<16, keyedUpTo(2)); len(payload) != 0 || n != 0 {
		t.Errorf("a payload of nothing: %x", payload)
	}
}

func TestOutboxBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 200).Draw(t, "limit")
		o := NewOutbox(limit)
		var added uint64
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "drain") {
				o.Drain(nil, rapid.IntRange(0, 1000).Draw(t, "bytes"), oneToOne{})
			}
			n := rapid.IntRange(0, 90).Draw(t, "facts")
			o.Add(factsOf(Kind(rapid.IntRange(0, int(Revert)).Draw(t, "kind")), Backend(i%3), start+Time(i/2), 1000*i, n))
			added += uint64(n)
			st := o.Stats()
			if st.Pending > limit || st.Sent+st.LostAdds+st.LostTouches+st.LostDrops+uint64(st.Pending) != added {
				t.Fatalf("%d added, limit %d: %+v", added, limit, st)
			}
		}
	})
}

func TestOutboxIsConcurrent(t *testing.T) {
	const writers, placements, anchors = 4, 200, 20
	o := NewOutbox(0)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range placements {
				o.Add(factsOf(Add, Backend(w), start+Time(i), 1+anchors*i, anchors))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var next [writers]Hash
	take := func() {
		for _, f := range drained(t, o, 500) {
			if next[f.Backend]++; f.Hash != next[f.Backend] {
				t.Errorf("writer %d: hash %d, want %d", f.Backend, f.Hash, next[f.Backend])
				next[f.Backend] = f.Hash
			}
		}
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	for w, n := range next {
		if n != placements*anchors {
			t.Errorf("writer %d: %d of %d", w, n, placements*anchors)
		}
	}
}

func TestOutboxForgetsABackend(t *testing.T) {
	o := NewOutbox(0)
	var news []Fact
	for i := range Time(200) {
		news = append(news, Fact{Hash: Hash(i + 1), Time: start + i, Backend: Backend(i % 3), Span: 1, Kind: Kind(i % 2)})
	}
	o.Add(append(news, Fact{Time: start, Backend: 1, Kind: Fence}, Fact{Time: start, Backend: 2, Kind: Fence}))
	o.Forget(1)
	if st := o.Stats(); st.Pending != 200-67+1 { // 67 facts and one fence of two are about it
		t.Fatalf("%+v", st)
	}
	payload, _ := o.Drain(nil, MaxPayload, oneToOne{})
	tree := newTree(t, Config{})
	if _, err := tree.ApplyDelta(payload, oneToOne{}, 0, start+300); err != nil {
		t.Fatal(err)
	}
	for spot := range heldBy(tree, start+300) {
		if spot.Backend == 1 {
			t.Fatalf("sent %+v", spot)
		}
	}
	if last := o.adds.n + o.touches.n; last != 0 {
		t.Errorf("%d are left", last)
	}
}
