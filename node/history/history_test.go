package history

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"grapevine.example/gossip/wire"
	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
)

func record(status int, ttft time.Duration, prompt, cached int) *proxy.Record {
	return &proxy.Record{Status: status, TTFT: ttft, PromptTokens: prompt, CachedTokens: cached, Decision: new(policy.Decision)}
}

func last(t *testing.T, h *History, coarse bool) map[string]float64 {
	t.Helper()
	out := make(map[string]float64)
	for name, column := range h.Span(coarse, time.Time{}).Columns {
		if len(column) == 0 {
			t.Fatalf("no point of %s", name)
		}
		out[name] = float64(column[len(column)-1])
	}
	return out
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.IsNaN(want) != math.IsNaN(got) || math.Abs(got-want) > 1e-3*max(math.Abs(want), 1) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestPointsOfOneNode(t *testing.T) {
	counts := new(Counts)
	h := New(counts)
	at := time.Unix(1_800_000_000, 0)
	for range 20 {
		counts.Observe(record(200, 100*time.Millisecond, 1000, 750), 10_000)
	}
	counts.Observe(record(429, 0, -1, -1), 10_000)
	counts.Observe(record(503, 0, -1, -1), 10_000)
	counts.Observe(record(404, 0, -1, -1), 10_000)
	counts.Observe(record(proxy.StatusClientGone, 0, -1, -1), 10_000)
	broken := record(200, 100*time.Millisecond, -1, -1)
	broken.Broken = true
	counts.Observe(broken, 10_000)
	h.Tick(at, 7, -1)
	p := last(t, h, false)
	for name, want := range map[string]float64{
		"served": 4, "refused": 0.2, "failed": 0.4, "rejected": 0.2, "departed": 0.2, "hit_rate": 0.75, "in_flight": 7, "saved_s": 0.3,
		"waiting": math.NaN(), "random_hit_rate": math.NaN(),
	} {
		near(t, name, p[name], want)
	}
	if p["ttft_p50_s"] < 0.1/bucketWidth || p["ttft_p50_s"] > 0.1*bucketWidth {
		t.Errorf("the median first token is %v s, and all took 0.1 s", p["ttft_p50_s"])
	}
	for i := range perCoarse - 1 {
		at = at.Add(Fine)
		h.Tick(at, 7, 3+i)
	}
	p = last(t, h, true)
	near(t, "requests per second of the minute", p["served"], 20./60)
	near(t, "requests in flight", p["in_flight"], 7)
	if p = last(t, h, false); p["served"] != 0 || !math.IsNaN(p["hit_rate"]) {
		t.Errorf("a period without requests has %v", p)
	}
}

func figuresOf(values map[int]uint64) (list []wire.Figure) {
	for key, v := range values {
		list = append(list, wire.Figure{Key: uint32(key), Low: uint32(v), High: uint32(v >> 32)})
	}
	return list
}

func TestPeersCountFromWhenTheyAreHeard(t *testing.T) {
	h := New(new(Counts))
	at := time.Unix(1_800_000_000, 0)
	tick := func() map[string]float64 {
		at = at.Add(Fine)
		h.Tick(at, 1, 0)
		return last(t, h, false)
	}
	const long = 1 << 40 // more than half of the number
	h.Peer("b", 1, 10_000, figuresOf(map[int]uint64{served: long, inFlight: 3}), true)
	near(t, "requests before it was heard", tick()["served"], 0)
	h.Peer("b", 1, 15_000, figuresOf(map[int]uint64{served: long + 50}), false)
	p := tick()
	near(t, "its requests per second", p["served"], 10)
	near(t, "requests in flight of both", p["in_flight"], 4)
	near(t, "requests without a report", tick()["served"], 0)
	h.Peer("b", 1, 19_000, figuresOf(map[int]uint64{served: long + 90}), false) // 40 in 4 s
	near(t, "requests per second of a shorter span", tick()["served"], 10)
	h.Peer("b", 2, 30_000, figuresOf(map[int]uint64{served: 7}), true)
	near(t, "requests of its next process", tick()["served"], 0)
	h.DropPeer("b")
	if p := tick(); p["in_flight"] != 1 || h.Reporting() != 0 {
		t.Errorf("%d peers report, and %v requests are in flight, after it ended", h.Reporting(), p["in_flight"])
	}
}

func TestFiguresReachThePeer(t *testing.T) {
	counts := new(Counts)
	for range 12 {
		counts.Observe(record(200, time.Second, 100, 50), 1000)
	}
	h := New(new(Counts))
	h.Peer("a", 1, 0, nil, true)
	list := counts.Append(nil, 5, map[uint32]float64{77: 3.1, 78: 0.2})
	for i := range list[1:] {
		if list[i].Key >= list[1+i].Key {
			t.Errorf("keys %d and %d: not sorted and distinct", list[i].Key, list[1+i].Key)
		}
	}
	h.Peer("a", 1, 5000, list, false)
	h.Tick(time.Unix(1_800_000_000, 0), 1, 0)
	p := last(t, h, false)
	near(t, "served", p["served"], 12./5)
	near(t, "hit_rate", p["hit_rate"], 0.5)
	near(t, "in_flight", p["in_flight"], 6)
	lags, ok := h.Lags("a")
	if !ok || lags[77] != 3 || lags[78] != 1 {
		t.Errorf("lags %v", lags)
	}
	h.Peer("a", 1, 7000, []wire.Figure{{Key: lagKey | 77}}, false)
	if lags, _ = h.Lags("a"); len(lags) != 1 {
		t.Errorf("lags %v: one peer is not heard any more", lags)
	}
	h.Peer("a", 1, 8000, []wire.Figure{{Key: figures, Low: 1}, {Key: lagKey - 1, Low: 1}}, false) // of a later release
}

func TestSpanWrapsAndBegins(t *testing.T) {
	counts := new(Counts)
	h := New(counts)
	at := time.Unix(1_800_000_000, 0)
	for i := range points + 10 {
		counts[served].Add(uint64(5 * i))
		at = at.Add(Fine)
		h.Tick(at, 0, 0)
	}
	all := h.Span(false, time.Time{})
	c := all.Columns["served"]
	if len(c) != points || c[0] != 10 || c[points-1] != points+9 || all.EndMS != at.UnixMilli() {
		t.Errorf("%d points from %v to %v", len(c), c[0], c[len(c)-1])
	}
	for since, want := range map[time.Time]int{at: 0, at.Add(time.Hour): 0, at.Add(-Fine): 1, at.Add(-3 * Fine): 3} {
		if c := h.Span(false, since).Columns["served"]; len(c) != want || want > 0 && c[want-1] != points+9 {
			t.Errorf("%d points since %v before the end, want %d", len(c), at.Sub(since), want)
		}
	}
	if n := len(h.Span(true, time.Time{}).Columns["served"]); n != (points+10)/perCoarse {
		t.Errorf("%d coarse points", n)
	}
}

func TestColumnInJSON(t *testing.T) {
	text, err := json.Marshal(Column{1, 0.123456, float32(math.NaN()), 12345678, 1e-7})
	if err != nil || string(text) != "[1,0.1235,null,1.235e+07,1e-07]" {
		t.Errorf("%s, %v", text, err)
	}
}

func BenchmarkObserve(b *testing.B) {
	counts, r := new(Counts), record(200, 100*time.Millisecond, 1000, 750)
	b.ReportAllocs()
	for b.Loop() {
		counts.Observe(r, 10_000)
	}
}
