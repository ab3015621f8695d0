package fleetsim

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

// watched chooses by the prompt alone, so that fleets of any size choose alike; look sees each
// choice.
type watched struct {
	look func(*policy.Scene)
}

func (w *watched) Choose(s *policy.Scene) (int, policy.Rung) {
	if w.look != nil {
		w.look(s)
	}
	return int(scramble(uint64(s.Request.Hashes[0])^uint64(len(s.Request.Hashes))) % uint64(len(s.Candidates))), policy.Hash
}

func grown(t testing.TB) *workload.Trace {
	t.Helper()
	var b strings.Builder
	for i := range 500 {
		s, turn := i%25, 1+i/25%6
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":%d,"session":%d,"turn":%d,"hash_runs":[0,2,%d,%d]}`+"\n",
			i*100, (2+2*turn)*128, 1+i*7%100, s+25*(i/150), turn, 1000*(s+1+25*(i/150)), 2*turn)
	}
	w, err := workload.Read(strings.NewReader(b.String()), "grown.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func rehearse(t *testing.T, pt point, change func(*Config)) (*fleet, *watched) {
	t.Helper()
	w := &watched{}
	cfg := Config{
		Workload: grown(t), Policies: []string{"watched"}, Backends: 4, HideCapacity: true, Tree: smallTree,
		Extra: func() map[string]policy.Strategy { return map[string]policy.Strategy{"watched": w} },
	}
	if change != nil {
		change(&cfg)
	}
	cfg, err := cfg.completed()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChainer(cfg.Workload.KeyTokens(), 1)
	if err != nil {
		t.Fatal(err)
	}
	src, err := cfg.Workload.Source(cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	pt.strategy = "watched"
	f, err := newFleet(&cfg, pt, c, src.Span())
	if err != nil {
		t.Fatal(err)
	}
	f.feed = feed{Source: src, chainer: c}
	return f, w
}

func play(t *testing.T, f *fleet) {
	t.Helper()
	if err := f.run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func digest(f *fleet, node int) string {
	f.deliver(node, f.now)
	n, x := uint64(0), uint64(0)
	for _, s := range f.nodes[node].tree.FactDigests(clock(f.now), engineKeys(f.cfg.Backends)) {
		n, x = n+s.Count, x^s.XOR
	}
	return fmt.Sprintf("%d facts %x", n, x)
}

func TestNodesKnowWhatOneKnows(t *testing.T) {
	one, _ := rehearse(t, point{nodes: 1}, nil)
	play(t, one)
	want := digest(one, 0)
	for _, p := range []Partition{{}, {time.Hour, 2 * time.Hour}} {
		many, w := rehearse(t, point{nodes: 5, share: ShareBoth}, func(c *Config) { c.Partition = p })
		choices := 0
		w.look = func(s *policy.Scene) {
			choices++
			for i := range s.Candidates {
				c := &s.Candidates[i]
				var tokens, active int64
				for n := range many.nodes {
					p, a := many.nodes[n].router.Load(c.Backend)
					tokens, active = tokens+p, active+a
				}
				if c.Active != active || c.Outstanding != tokens {
					t.Fatalf("choice %d: backend %d has %d requests and %d tokens, the node knows of %d and %d", choices, c.Backend, active, tokens, c.Active, c.Outstanding)
				}
			}
		}
		play(t, many)
		if choices != 500 {
			t.Errorf("%d choices", choices)
		}
		for n := range many.nodes {
			if got := digest(many, n); got != want {
				t.Errorf("node %d of 5 holds %s, one that knows all %s", n, got, want)
			}
		}
		a, b := one.report(), many.report()
		if a.CachedTokens != b.CachedTokens || a.Prediction != b.Prediction {
			t.Errorf("one node predicts %+v, one of five %+v", a.Prediction, b.Prediction)
		}
	}
}

func TestDelay(t *testing.T) {
	const delay = 1500 * time.Millisecond
	f, w := rehearse(t, point{nodes: 2, share: ShareBoth, staleness: delay}, nil)
	type moment struct {
		at   time.Duration
		load [2]int64
	}
	var past []moment
	checked := 0
	w.look = func(s *policy.Scene) {
		me := 0
		var now moment
		now.at = f.now
		for n := range f.nodes {
			_, now.load[n] = f.nodes[n].router.Load(0)
		}
		if s.Candidates[0].OwnActive == now.load[1] && now.load[0] != now.load[1] {
			me = 1
		} else if now.load[0] == now.load[1] {
			past = append(past, now)
			return
		}
		// The node's knowledge is as old as the delay, or younger by up to the interval of flushes.
		lo, hi := int64(math.MaxInt64), int64(-1)
		for i := range past {
			last := i+1 == len(past)
			if past[i].at <= f.now-delay+flushEvery && (last || past[i+1].at >= f.now-delay) {
				lo, hi = min(lo, past[i].load[1-me]), max(hi, past[i].load[1-me])
				if !last {
					lo, hi = min(lo, past[i+1].load[1-me]), max(hi, past[i+1].load[1-me])
				}
			}
		}
		past = append(past, now)
		heard := s.Candidates[0].Active - s.Candidates[0].OwnActive
		if hi < 0 {
			if f.now < delay && heard != 0 {
				t.Fatalf("at %v already %d requests of the other", f.now, heard)
			}
			return
		}
		checked++
		// Between two choices one request may have come and another gone.
		if heard < lo-1 || heard > hi+1 {
			t.Fatalf("at %v: hears of %d requests, the other had %d to %d then", f.now, heard, lo, hi)
		}
	}
	play(t, f)
	if checked < 20 {
		t.Errorf("only %d choices could be checked", checked)
	}
}

// Nodes look at what they have outstanding every 50 ms, as live ones do: a prefill that its node cannot see end leaves the node's reports
// then, although nothing else happens there.
func TestUnseenPrefillsLeaveTheReports(t *testing.T) {
	checked := 0
	look := func(f *fleet, fl *flight) {
		for b := range prefixtree.Backend(f.cfg.Backends) {
			heard, _ := f.nodes[fl.node].router.PeerLoad(b)
			most := int64(0)
			for n := range f.nodes {
				if n == fl.node {
					continue
				}
				for _, l := range f.nodes[n].router.OwnLoads(nil, clock(f.now-flushEvery)) {
					if l.Backend == b {
						most += l.PrefillTokens
					}
				}
			}
			if heard > most {
				t.Fatalf("at %v: by the reports %d tokens are outstanding at backend %d, 50 ms ago %d were", f.now, heard, b, most)
			}
			if most > 0 {
				checked++
			}
		}
	}
	f, _ := rehearse(t, point{nodes: 4, share: ShareBoth}, func(c *Config) { c.Unstreamed, c.sent = 1, look })
	play(t, f)
	if checked < 50 {
		t.Errorf("only %d reports with prefills were checked", checked)
	}
}

// TestLateTakingIsExact: taking messages when a node acts equals taking each on its arrival.
func TestLateTakingIsExact(t *testing.T) {
	for _, delay := range []time.Duration{0, 700 * time.Millisecond} {
		pt := point{nodes: 6, share: ShareBoth, staleness: delay}
		show := func(f *fleet) string {
			play(t, f)
			var b bytes.Buffer
			if err := report.WriteJSON(&b, f.report()); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		f, _ := rehearse(t, pt, nil)
		lazy := show(f)
		f, w := rehearse(t, pt, nil)
		w.look = func(*policy.Scene) {
			for n := range f.nodes {
				f.deliver(n, f.now)
			}
		}
		if eager := show(f); eager != lazy {
			t.Errorf("delay %v: taken on arrival, messages make another run:\n%s%s", delay, lazy, eager)
		}
	}
}

func TestLogIsCut(t *testing.T) {
	pt := point{nodes: 6, share: ShareBoth, staleness: 300 * time.Millisecond}
	whole, _ := rehearse(t, pt, nil)
	play(t, whole)
	f, w := rehearse(t, pt, nil)
	longest := 0
	f.limit = 1
	w.look = func(*policy.Scene) {
		longest = max(longest, len(f.log))
		f.limit = 1
	}
	play(t, f)
	if longest > 60 {
		t.Errorf("the log had up to %d items though all old ones could go", longest)
	}
	for n := range f.nodes {
		if a, b := digest(whole, n), digest(f, n); a != b {
			t.Errorf("node %d holds %s, without cuts %s", n, b, a)
		}
	}
}

func TestPartition(t *testing.T) {
	p := Partition{15 * time.Second, 28 * time.Second}
	f, w := rehearse(t, point{nodes: 4, share: ShareBoth}, func(c *Config) { c.Partition = p })
	var same, apart [2]int // choices in which both nodes of a half, or both halves, had equal trees; before and within
	loads, looks := 0, 0
	w.look = func(s *policy.Scene) {
		var phase int
		switch {
		case f.now > 5*time.Second && f.now < p.From:
			phase = 0
		case f.now > p.From+detection+time.Second && f.now < p.To:
			phase = 1
		default:
			return
		}
		if s.Nodes != 4/(1+phase) {
			t.Fatalf("at %v the router believes in %d nodes", f.now, s.Nodes)
		}
		if looks++; looks%5 != 0 {
			return
		}
		var d [4]string
		for n := range f.nodes {
			d[n] = digest(f, n)
		}
		if d[0] == d[1] || d[2] == d[3] {
			same[phase]++
		}
		if d[0] == d[2] {
			apart[phase]++
		}
		if phase == 0 {
			return
		}
		for i := range s.Candidates {
			var sides [2]int64
			for n := range f.nodes {
				_, a := f.nodes[n].router.Load(s.Candidates[i].Backend)
				sides[n/2] += a
			}
			if a := s.Candidates[i].Active; a != sides[0] && a != sides[1] {
				t.Fatalf("at %v backend %d is believed to have %d requests, of the sides %v", f.now, i, a, sides)
			}
			loads++
		}
	}
	play(t, f)
	if same[0] == 0 || apart[0] == 0 || same[1] == 0 || apart[1] != 0 || loads == 0 {
		t.Errorf("nodes of a side, and both sides, held the same at %d and %d choices before, %d and %d within", same[0], apart[0], same[1], apart[1])
	}
	f.now += time.Second
	want := digest(f, 0)
	for n := 1; n < 4; n++ {
		if got := digest(f, n); got != want {
			t.Errorf("after healing node %d holds %s, node 0 %s", n, got, want)
		}
	}
	if r := f.report(); r.Gossip.Convergence.P50 != 0 || r.Gossip.Convergence.P99 < 10_000 || r.Errors != 0 {
		t.Errorf("convergence %+v, %d errors", r.Gossip.Convergence, r.Errors)
	}
}

func TestLossCostsLittle(t *testing.T) {
	bubble.SkipInRace(t)
	const seeds = 8 // hits of one differ by a percent with the choices that are drawn
	hits := func(loss float64) float64 {
		sum := 0.0
		for seed := range uint64(seeds) {
			cfg := chat(t, "prefix")
			cfg.Engine.KVTokens = 400_000 // holds the live data, so that knowledge makes the difference
			cfg.Nodes, cfg.Loss, cfg.Options.Seed, cfg.Options.Duration = []int{8}, loss, 1+seed, 20*time.Second
			sum += run(t, cfg)[0].HitRate / seeds
		}
		return sum
	}
	whole, lossy := hits(0), hits(0.05)
	t.Logf("hit rate %.4f, with 5 %% of messages lost %.4f", whole, lossy)
	if lossy < 0.99*whole {
		t.Errorf("5 %% of messages lost: %.4f of %.4f hits", lossy, whole)
	}
}

func TestLossLoses(t *testing.T) {
	count := func(loss float64) (n float64) {
		f, _ := rehearse(t, point{nodes: 5, share: SharePrefix}, func(c *Config) { c.Loss = loss })
		play(t, f)
		for i := range f.nodes {
			f.deliver(i, f.now)
			for _, s := range f.nodes[i].tree.FactDigests(clock(f.now), engineKeys(f.cfg.Backends)) {
				n += float64(s.Count)
			}
		}
		return n
	}
	if whole, half := count(0), count(0.5); half > 0.9*whole || half < 0.5*whole {
		t.Errorf("with half of the messages lost nodes hold %.0f facts of %.0f", half, whole)
	}
}

func TestLostIsAFairCoin(t *testing.T) {
	l := link{loss: 0.2, size: 10, seed: 7}
	n, total := 0, 0
	for origin := range 10 {
		for node := range 10 {
			for tick := range 200 {
				total++
				at := time.Duration(tick) * flushEvery
				lost := l.lost(origin, node, at)
				if lost {
					n++
				}
				if lost != l.lost(origin, node, at+flushEvery-1) {
					t.Fatal("two records of one flush part")
				}
			}
		}
	}
	if share := float64(n) / float64(total); math.Abs(share-0.2) > 0.02 {
		t.Errorf("%.3f of the messages are lost", share)
	}
}

func TestBytesAreCounted(t *testing.T) {
	var counted [2]float64
	for i, nodes := range []int{2, 4} {
		f, _ := rehearse(t, point{nodes: nodes, share: SharePrefix, staleness: 100 * time.Millisecond}, nil)
		facts := int64(0)
		f.limit = math.MaxInt
		play(t, f)
		tree, err := prefixtree.New(prefixtree.Config{MaxBackends: 4})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range f.log {
			if m.batch == nil {
				continue
			}
			a, err := tree.ApplyDelta(m.batch, engineKeys(4), 0, clock(m.sent))
			if err != nil {
				t.Fatal(err)
			}
			facts += int64(a.Records)
		}
		counted[i] = f.report().Gossip.BytesPerSPerNode * f.span.Seconds() * float64(nodes) / float64(nodes-1)
		if least := float64(8 * facts); facts == 0 || counted[i] < 0.8*least || counted[i] > 3*least {
			t.Errorf("%d nodes: %.0f bytes for %d facts", nodes, counted[i], facts)
		}
	}
	if counted[1] < 0.9*counted[0] || counted[1] > 1.2*counted[0] {
		t.Errorf("two nodes make %.0f bytes of news, four %.0f of the same", counted[0], counted[1])
	}
}

func TestParsePartition(t *testing.T) {
	if p, err := ParsePartition("60s-2m"); err != nil || p != (Partition{time.Minute, 2 * time.Minute}) {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := ParsePartition(""); err != nil || !p.none() {
		t.Errorf("%v, %v", p, err)
	}
	for _, s := range []string{"60s", "60s-", "2m-60s", "60-120", "-5s-10s", "5s-5s"} {
		if p, err := ParsePartition(s); err == nil {
			t.Errorf("%q is taken for %v", s, p)
		}
	}
}
