package policy

import (
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// computes reports that the engine computes so many tokens/s while it prefills, for half of the time.
func computes(r *Router, b prefixtree.Backend, rate float64, from, to prefixtree.Time, since books.Telemetry) books.Telemetry {
	for now := from; now <= to; now += 1000 {
		since.At = now
		since.Prefilled += int64(rate / 2)
		since.PrefillTime += time.Second / 2
		r.SetTelemetry(b, since)
	}
	return since
}

func TestEnginesTellTheirRates(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(2))
	about := func(when string, want float64) {
		t.Helper()
		if got := r.Rate(0); math.Abs(got-want) > want/50 {
			t.Errorf("%s: %v tokens/s, want %v", when, got, want)
		}
	}
	// answer is not streamed and takes so long that the engine seems to be ten times slower than others.
	answers := uint64(0)
	answer := func(b prefixtree.Backend, took prefixtree.Time, now prefixtree.Time) {
		answers++
		q := whole(prompt(1, answers, 0, 80))
		q.Exclude = except(2, b)
		a := pick(t, r, q, now-took)
		a.Dispatched(now - took)
		a.End(Outcome{PromptTokens: 10_240, OutputTokens: 100}, now)
	}
	r.SetTelemetry(0, books.Telemetry{At: t0, Prefilled: 1 << 40, PrefillTime: time.Hour})
	about("one report shows nothing", defaultPrefillRate)
	last := computes(r, 0, 40_000, t0+1000, t0+60_000, books.Telemetry{Prefilled: 1 << 40, PrefillTime: time.Hour})
	about("a minute of 40,000", 40_000)
	if got := r.Rate(1); math.Abs(got-40_000) > 1000 {
		t.Errorf("an engine that reports nothing is taken for %v, the fleet computes 40,000", got)
	}
	answer(1, 1000, t0+60_000)
	answer(0, 10_000, t0+61_000)
	about("an answer took long", 40_000)
	r.SetTelemetry(0, books.Telemetry{At: t0 + 62_000, Prefilled: 10, PrefillTime: time.Second})
	about("it restarted", 40_000)
	r.SetTelemetry(0, books.Telemetry{At: t0 + 63_000, Prefilled: math.MaxInt64, PrefillTime: time.Second + 1})
	about("it claims nonsense", 40_000)
	r.SetTelemetry(0, books.Telemetry{At: t0 + 63_500, Prefilled: 10, PrefillTime: time.Hour})
	r.SetTelemetry(0, books.Telemetry{At: t0 + 63_600, Prefilled: 1000 * 255, PrefillTime: time.Hour + 10*time.Second, Prefills: 1000})
	about("its requests computed little each", 40_000)
	last = computes(r, 0, 8_000, t0+64_000, t0+184_000, last)
	about("a minute of prefill at 8,000", 8_000)
	if rate, weight := r.OwnRate(0); rate != 0 || weight != 0 {
		t.Errorf("%v of weight %v goes to the other nodes, which read the engine themselves", rate, weight)
	}
	answer(0, 10_000, last.At+books.ReportsLast)
	if got := r.Rate(0); math.Abs(got-8_000) < 80 {
		t.Errorf("half a minute after the last report requests still teach nothing: %v", got)
	}
}

func TestNewerReportsOfEnginesReplaceThoseOfPeers(t *testing.T) {
	const stale = 5000
	r := among(t, 8, stale*time.Millisecond, fleetOf(2))[0]
	r.SetPeerLoad("others", []books.PeerLoad{{Backend: 1, PrefillTokens: 150_000, Active: 9}}, t0)
	var d Decision
	seen := func(now prefixtree.Time) *Candidate {
		s := new(Scene)
		s.peek = true
		if _, err := r.decide(s, ask(prompt(1, 1, 0, 8)), now, &d); err != nil {
			t.Fatal(err)
		}
		return &s.Candidates[s.where[1]]
	}
	want := func(when string, now prefixtree.Time, queued float64, active int64) {
		t.Helper()
		if c := seen(now); math.Abs(c.Queued-queued) > 1 || c.Active != active {
			t.Errorf("%s: %v tokens queued, %d requests, want %v and %d", when, c.Queued, c.Active, queued, active)
		}
	}
	from := func(engines bool, age time.Duration) {
		t.Helper()
		if d.FromEngines != engines || d.LoadAge != age {
			t.Errorf("the load is from engines: %v, and %v old; want %v and %v", d.FromEngines, d.LoadAge, engines, age)
		}
	}
	want("only peers report, 5 s ago", t0, 150_000, 9)
	from(false, stale*time.Millisecond)
	r.SetTelemetry(0, books.Telemetry{At: t0})
	want("the other engine says nothing", t0, 150_000, 9)
	r.SetTelemetry(1, books.Telemetry{At: t0, Queued: 30_000, Running: 2, Waiting: 3})
	want("the engine has 30,000", t0, 30_000, 5)
	want("it has computed for a second", t0+1000, 20_000, 5)
	from(true, time.Second)
	q := ask(prompt(2, 2, 0, 80))
	q.Exclude = except(2, 1)
	a := pick(t, r, q, t0+1000)
	a.Dispatched(t0 + 1000)
	want("this node sent 10,240 more", t0+2000, 20_240, 6)
	// The own request waits behind the 150,000 that are reported in full until an answer begins.
	want("older than what peers report", t0+stale, 110_240, 10)
	r.SetFleet(8, time.Hour)
	want("the peers are silent, so the key decides", t0+4000, 120_240, 10)
	r.SetTelemetry(1, books.Telemetry{At: t0 + 4000, Queued: -1})
	r.SetFleet(8, stale*time.Millisecond)
	want("the engine does not report its queue", t0+4000, 120_240, 10)
	a.End(unknown(), t0+4000)
}
