package streams

import (
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/raftstore"
)

// What lower tiers hold costs the usual part of its computation until the engine has loaded enough, and then what that took.
func TestPricesOfTiers(t *testing.T) {
	const b, rate = prefixtree.Backend(3), 10_000.0
	var s Caches
	p := new(price)
	s.Set([]*Cache{{Engine: b, price: p}})
	check := func(when string, host, disk float64) {
		t.Helper()
		if h, d := p.of(1000, 0), p.of(0, 1000); math.Abs(h-1000*host) > 1e-6 || math.Abs(d-1000*disk) > 1e-6 {
			t.Errorf("%s: 1,000 tokens cost %.1f in CPU memory, %.1f on disk; want %.1f and %.1f", when, h, d, 1000*host, 1000*disk)
		}
	}
	report := func(loaded int64, took time.Duration, read int64, reading time.Duration) {
		s.Loaded(b, &engine.Metrics{Fetches: engine.Fetches{Loaded: loaded, LoadTime: took, Read: read, ReadTime: reading}}, rate)
	}
	check("nothing reported", 0.25, 0.75)
	report(50_000, 100*time.Second, 0, 0) // before this node asked
	check("one report", 0.25, 0.75)
	report(50_100, 100*time.Second+10*time.Millisecond, 0, 0)
	check("few tokens", 0.25, 0.75)
	report(60_100, 100*time.Second+110*time.Millisecond, 0, 0) // in all 10,100 tokens in 0.11 s
	check("from memory", rate*0.11/10_100, 0.75)
	report(70_100, 100*time.Second+110*time.Millisecond, 10_000, 300*time.Millisecond)
	host := rate * 0.11 / 20_100
	check("from disk, too", host, host+rate*0.3/10_000)
	report(100, time.Millisecond, 0, 0)
	check("restarted", host, host+rate*0.3/10_000)
	for i := range int64(300) { // much faster now
		report(100+(i+1)*100_000, time.Duration(i+1)*100*time.Millisecond, 0, 0)
	}
	if cost := p.of(1000, 0); cost > 20 || cost < 10 {
		t.Errorf("1,000 tokens of an engine that loads a million in a second cost %.1f, want 10 and little more", cost)
	}
	report(100+301*100_000, time.Hour, 0, 0)
	check("slower than computing", 1, 1)
}

// A restarted engine keeps its price; another one at its number does not.
func TestPriceIsOfOneEngine(t *testing.T) {
	first, second := newFake(t), newFake(t)
	s := newFleet(t, first, nil)
	version := uint64(0)
	adopt := func(list ...raftstore.Backend) {
		t.Helper()
		version++
		if err := s.dir.Adopt(&raftstore.State{Version: version, Backends: list}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(f *fake, generation uint32) raftstore.Backend {
		return raftstore.Backend{Name: "engine", URL: f.http.URL, Weight: 1, State: raftstore.Active, Generation: generation}
	}
	adopt(at(first, 1))
	var b prefixtree.Backend
	followed := func(url string, generation uint32) *price {
		t.Helper()
		eventually(t, "stream of the engine", func() bool {
			b = s.engine().ID
			st := s.stream(b)
			return st != nil && st.url == url && st.generation == generation && st.own != nil
		})
		return s.of(b).price
	}
	p := followed(first.http.URL, 1)
	for i := range int64(2) { // a thousandth of a second a token, of which it computes 100 in a second
		s.Loaded(b, &engine.Metrics{Fetches: engine.Fetches{Loaded: i * 10_000, LoadTime: time.Duration(i) * 10 * time.Second, Read: -1, ReadTime: -1}}, 100)
	}
	const known, usual = 100, 250
	if cost := p.of(1000, 0); math.Abs(cost-known) > 1e-6 {
		t.Fatalf("1,000 tokens cost %.1f, want %d", cost, known)
	}
	adopt(at(first, 2))
	if cost := followed(first.http.URL, 2).of(1000, 0); math.Abs(cost-known) > 1e-6 {
		t.Errorf("1,000 tokens cost %.1f after a restart, want %d", cost, known)
	}
	was := b
	adopt(at(second, 3))
	if cost := followed(second.http.URL, 3).of(1000, 0); math.Abs(cost-usual) > 1e-6 || b != was {
		t.Errorf("1,000 tokens cost %.1f at another engine, number %d after %d; want %d at the same number", cost, b, was, usual)
	}
	adopt()
	eventually(t, "end of the stream", func() bool { return s.stream(b) == nil })
}
