package streams

import (
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
)

// What lower tiers hold costs the usual part of its computation until the engine has loaded enough, and then what that took.
func TestPricesOfTiers(t *testing.T) {
	const b, rate = prefixtree.Backend(3), 10_000.0
	var s Caches
	check := func(when string, host, disk float64) {
		t.Helper()
		if h, d := s.prices.of(b, 1000, 0), s.prices.of(b, 0, 1000); math.Abs(h-1000*host) > 1e-6 || math.Abs(d-1000*disk) > 1e-6 {
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
	if cost := s.prices.of(b, 1000, 0); cost > 20 || cost < 10 {
		t.Errorf("1,000 tokens of an engine that loads a million in a second cost %.1f, want 10 and little more", cost)
	}
	report(100+301*100_000, time.Hour, 0, 0)
	check("slower than computing", 1, 1)
}
