package share

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"grapevine.example/gossip/wire"
	"grapevine.example/node/backends"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
)

type knower struct {
	*Knowledge
	names *backends.Registry
	at    prefixtree.Time
	q     policy.Request
}

func newKnower(tb testing.TB, engines ...string) *knower {
	tb.Helper()
	outbox := prefixtree.NewOutbox(0)
	tree, err := prefixtree.New(prefixtree.Config{Changed: outbox.Add})
	if err != nil {
		tb.Fatal(err)
	}
	names := backends.NewRegistry(1024, func(prefixtree.Backend) bool { return true }, time.Now)
	ids, _ := names.List(engines)
	var list []policy.Backend
	for i, name := range engines {
		list = append(list, policy.Backend{ID: ids[i], Name: name, Weight: 1})
	}
	router, err := policy.NewRouter(policy.Config{Seed: 1}, tree)
	if err != nil {
		tb.Fatal(err)
	}
	view, err := policy.NewView(list, []rules.Rule{{PathPrefix: "/least", Strategy: policy.LeastRequest}})
	if err != nil {
		tb.Fatal(err)
	}
	router.SetView(view)
	return &knower{Knowledge: New(tree, outbox, router, names), names: names, at: now()}
}

func (k *knower) facts(at prefixtree.Time) (count, xor uint64) {
	for _, s := range k.tree.FactDigests(at, k.names) {
		count, xor = count+s.Count, xor^s.XOR
	}
	return count, xor
}

func now() prefixtree.Time { return prefixtree.Time(time.Now().UnixMilli()) }

func (k *knower) receive(tb testing.TB, peer string, blob []byte) {
	tb.Helper()
	s, err := Parse(blob)
	if err != nil {
		tb.Fatal(err)
	}
	k.PeerState(peer, s)
}

func chain(seed, blocks int) []prefixtree.Hash {
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	hashes := make([]prefixtree.Hash, blocks)
	for i := range hashes {
		hashes[i] = prefixtree.Hash(rnd.Uint64())
	}
	return hashes
}

// serve runs one request to its end and returns the engine's name and the rung.
func (k *knower) serve(tb testing.TB, a *policy.Attempt, hashes []prefixtree.Hash, cached int) (string, policy.Rung) {
	k.q = policy.Request{Hashes: hashes, PromptBytes: len(hashes) * 512}
	if err := k.router.Pick(&k.q, k.at, a); err != nil {
		tb.Fatal(err)
	}
	d := a.Decision()
	a.Dispatched(k.at)
	k.at += 100
	a.FirstToken(k.at)
	k.at += 100
	a.End(policy.Outcome{PromptTokens: len(hashes) * 128, CachedTokens: cached, OutputTokens: 5}, k.at)
	return d.Name, d.Rung
}

func tell(t *testing.T, a, b *knower) (records, news int) {
	t.Helper()
	for {
		payload, n := a.Drain(nil, 64<<10)
		if n == 0 {
			break
		}
		applied, err := b.Apply(payload, 0, now())
		if err != nil || applied.Records != n {
			t.Fatalf("%d of %d records: %v", applied.Records, n, err)
		}
		records, news = records+n, news+applied.News
	}
	b.PeerLoad("a", a.Loads(nil, a.at), true, b.at)
	b.receive(t, "a", a.State(nil, a.at))
	return records, news
}

// TestKnowledgeTravels: a node sends a continuation to the engine that another node chose, whatever
// their numbers.
func TestKnowledgeTravels(t *testing.T) {
	one, two := newKnower(t, "a", "b", "c", "d"), newKnower(t, "d", "c", "b", "a", "e")
	for seed := range 20 {
		prompt := chain(seed, 40)
		engine, _ := one.serve(t, new(policy.Attempt), prompt, 0)
		if records, news := tell(t, one, two); records == 0 || news == 0 {
			t.Fatalf("%d records, %d news", records, news)
		}
		if posted := one.Stats().Queued["add"]; posted == 0 {
			t.Fatal("no add was counted")
		}
		longer := append(prompt, chain(1000+seed, 5)...)
		if got, rung := two.serve(t, new(policy.Attempt), longer, 40*128); got != engine || rung != policy.Cache {
			t.Errorf("prompt %d went to %s, its continuation elsewhere to %s by %s", seed, engine, got, rung)
		}
		tell(t, two, one)
		for range 3 {
			tell(t, one, two)
			if records, _ := tell(t, two, one); records != 0 {
				t.Fatalf("%d records still go round", records)
			}
		}
	}
}

func TestSnapshotTellsEverything(t *testing.T) {
	one, two := newKnower(t, "a", "b"), newKnower(t, "b", "a")
	engines := make([]string, 50)
	for seed := range engines {
		engines[seed], _ = one.serve(t, new(policy.Attempt), chain(seed, 40), 0)
	}
	total := 0
	one.Snapshot(4096, one.at, func(page []byte, records int) bool {
		total += records
		if applied, err := two.Apply(page, 0, now()); err != nil || applied.News != records {
			t.Fatalf("%+v of %d records: %v", applied, records, err)
		}
		return true
	})
	for name, k := range map[string]*knower{"first": one, "joiner": two} {
		if size := k.tree.Anchors(now()); size != total || size < 50*20 {
			t.Errorf("the %s announces %d facts, a snapshot has %d", name, size, total)
		}
	}
	for seed, engine := range engines {
		if got, rung := two.serve(t, new(policy.Attempt), chain(seed, 41), 40*128); got != engine || rung != policy.Cache {
			t.Errorf("prompt %d is on %s, the joiner sends it to %s by %s", seed, engine, got, rung)
		}
	}
}

// TestSnapshotAnswered: a receiver that knows more about a snapshot's fact sends its knowledge on.
func TestSnapshotAnswered(t *testing.T) {
	one, two := newKnower(t, "a", "b"), newKnower(t, "b", "a")
	prompt := chain(1, 23)
	two.tree.Record(1, prompt[:18], two.at-60_000, nil) // makes block 18 an anchor
	one.tree.Record(0, prompt, one.at, nil)             // has it later, between anchors
	tell(t, one, two)
	two.Snapshot(4096, two.at, func(page []byte, _ int) bool {
		if _, err := one.Apply(page, 0, now()); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if records, news := tell(t, one, two); records != 1 || news != 1 {
		t.Errorf("%d records, %d news", records, news)
	}
	count, xor := one.facts(one.at)
	if n, x := two.facts(two.at); n != count || x != xor || n != 19 {
		t.Errorf("the trees hold %d and %d facts, or disagree on their times", count, n)
	}
}

func TestLoadTravels(t *testing.T) {
	one, two := newKnower(t, "a", "b"), newKnower(t, "b", "a")
	two.router.SetFleet(2, 50*time.Millisecond)
	q := policy.Request{Hashes: chain(1, 100), PromptBytes: 51_200}
	var a policy.Attempt
	if err := one.router.Pick(&q, one.at, &a); err != nil {
		t.Fatal(err)
	}
	busy := a.Decision().Name
	loads := one.Loads(nil, one.at)
	if len(loads) != 1 || loads[0].Backend != prefixtree.BackendKey(busy) || loads[0].Active != 1 || loads[0].PrefillTokens == 0 {
		t.Fatalf("loads %+v, the request is at %s", loads, busy)
	}
	elsewhere := func(want bool) {
		t.Helper()
		var other policy.Attempt
		if err := two.router.Pick(&policy.Request{Hashes: chain(2, 10), PromptBytes: 5120, Path: []byte("/least")}, two.at, &other); err != nil {
			t.Fatal(err)
		}
		d := other.Decision()
		for _, c := range d.Candidates {
			if c.Name == busy && (c.Active == 0) == want {
				t.Errorf("%s has %d active requests as seen from the other node", busy, c.Active)
			}
		}
		if want && d.Name == busy {
			t.Errorf("the busy engine was chosen")
		}
		other.End(policy.Outcome{Failed: books.ClientGone, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, two.at)
	}
	two.PeerLoad("one", append(loads, wire.Load{Backend: 12345, Active: 7}), true, two.at)
	if two.unknown.Load() != 0 {
		t.Error("a backend that may be listed in a moment was refused")
	}
	elsewhere(true)
	two.PeerLoad("one", []wire.Load{{Backend: loads[0].Backend}}, false, two.at)
	elsewhere(false)
	two.PeerLoad("one", loads, false, two.at)
	elsewhere(true)
	two.DropPeer("one")
	elsewhere(false)
}

func TestStateTravels(t *testing.T) {
	one, two := newKnower(t, "a", "b"), newKnower(t, "b", "a")
	for seed := range 300 { // 15 s of prefills at each engine: as evidence of a faster rate it must exceed the prior's 10
		one.serve(t, new(policy.Attempt), chain(seed, 60), 0)
	}
	before := []float64{two.router.Rate(0), two.router.Rate(1)}
	two.receive(t, "one", one.State(nil, one.at))
	measured := 0
	for id := range prefixtree.Backend(2) {
		own, weight := one.router.OwnRate(id)
		if weight == 0 {
			continue
		}
		measured++
		if got := two.router.Rate(1 - id); math.Abs(got-own) >= math.Abs(before[1-id]-own) {
			t.Errorf("the rate of engine %d is %v here, %v where it was measured, %v before", id, got, own, before[1-id])
		}
	}
	if measured == 0 {
		t.Error("the first node has measured nothing")
	}
	if states := two.peers.states; len(states) != 1 {
		t.Errorf("%d peers", len(states))
	}
	two.DropPeer("one")
	if states := two.peers.states; len(states) != 0 {
		t.Errorf("%d peers after the only one has gone", len(states))
	}
}

func TestStateStaysUntilItMatters(t *testing.T) {
	k := newKnower(t, "a")
	for seed := range 20 {
		k.serve(t, new(policy.Attempt), chain(seed, 60), 0)
	}
	blob := k.State(nil, k.at)
	if s, err := Parse(blob); err != nil || len(s.Claims) != 1 {
		t.Fatalf("%v %v", s, err)
	}
	k.serve(t, new(policy.Attempt), chain(21, 62), 0)
	if again := k.State(nil, k.at); !bytes.Equal(blob, again) {
		t.Errorf("one request more changed % x to % x", blob, again)
	}
	for seed := range 40 {
		k.serve(t, new(policy.Attempt), chain(100+seed, 240), 0)
	}
	if later := k.State(nil, k.at); bytes.Equal(blob, later) {
		t.Error("four times the rate is told as nothing")
	}
}

// TestWhatComesTooLateIsCounted: records that are hours old have no effect, but are counted.
func TestWhatComesTooLateIsCounted(t *testing.T) {
	one, two := newKnower(t, "a"), newKnower(t, "a")
	one.tree.Record(0, chain(1, 10), one.at-prefixtree.Time(time.Hour/time.Millisecond), nil)
	if records, news := tell(t, one, two); records != 10 || news != 0 || two.Stats().Late != 10 {
		t.Errorf("%d records, %d news, %d late", records, news, two.Stats().Late)
	}
}

func TestApplyRefusesNonsense(t *testing.T) {
	k := newKnower(t, "a")
	if _, err := k.Apply([]byte("not a delta"), 0, k.at); err == nil {
		t.Error("a batch of nonsense was taken")
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, fleet := range []bool{false, true} {
		b.Run(fmt.Sprintf("fleet=%v", fleet), func(b *testing.B) {
			k := newKnower(b, "a", "b", "c", "d")
			if !fleet {
				tree, err := prefixtree.New(prefixtree.Config{})
				if err != nil {
					b.Fatal(err)
				}
				router, err := policy.NewRouter(policy.Config{Seed: 1}, tree)
				if err != nil {
					b.Fatal(err)
				}
				router.SetView(k.router.View())
				k.router = router
			}
			var a policy.Attempt
			prompts := make([][]prefixtree.Hash, 16)
			for i := range prompts {
				prompts[i] = chain(i, 64)
			}
			payload := make([]byte, 0, 64<<10)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k.serve(b, &a, prompts[i%len(prompts)], 0)
				k.at += 3000
				if i%16 == 0 {
					k.Drain(payload[:0], cap(payload))
				}
			}
		})
	}
}

func TestKnowledgeIsConcurrent(t *testing.T) {
	t.Parallel()
	nodes := [2]*knower{newKnower(t, "a", "b", "c"), newKnower(t, "c", "b", "a")}
	var serving, telling sync.WaitGroup
	ended := make(chan struct{})
	for i, k := range nodes {
		for w := range 2 {
			serving.Go(func() {
				for n := range 60 {
					hashes := chain(n%30*2+w, 10+(n+7*i)%40)
					q := policy.Request{Hashes: hashes, PromptBytes: len(hashes) * 512}
					var a policy.Attempt
					if err := k.router.Pick(&q, now(), &a); err != nil {
						t.Error(err)
						return
					}
					a.Dispatched(now())
					a.FirstToken(now() + 20)
					a.End(policy.Outcome{PromptTokens: len(hashes) * 128, CachedTokens: -1, OutputTokens: 5}, now()+30)
				}
			})
		}
		other := nodes[1-i]
		exchange := func() (records int) {
			payload, records := k.Drain(nil, 4096)
			if records > 0 {
				if _, err := other.Apply(payload, 0, now()); err != nil {
					t.Error(err)
				}
			}
			other.PeerLoad("peer", k.Loads(nil, now()), true, now())
			other.receive(t, "peer", k.State(nil, now()))
			return records
		}
		telling.Go(func() {
			for n := 0; ; n++ {
				records := exchange()
				select {
				case <-ended:
					if records == 0 {
						return
					}
				default:
				}
				if n%10 == 9 {
					other.DropPeer("peer")
					other.router.SetFleet(2, time.Duration(n)*time.Millisecond)
				}
			}
		})
		telling.Go(func() {
			for range 5 {
				k.Snapshot(2048, now(), func(page []byte, _ int) bool {
					if _, err := other.Apply(page, 0, now()); err != nil {
						t.Error(err)
					}
					return true
				})
				k.tree.Anchors(now())
			}
		})
	}
	serving.Wait()
	close(ended)
	telling.Wait()
	for tell(t, nodes[0], nodes[1]); ; {
		if records, _ := tell(t, nodes[1], nodes[0]); records == 0 {
			break
		}
		tell(t, nodes[0], nodes[1])
	}
	at := now() + 100
	count, xor := nodes[0].facts(at)
	if n, x := nodes[1].facts(at); n != count || x != xor || n < 1000 {
		t.Errorf("one knows %d facts, the other %d, or other times", count, n)
	}
	for _, k := range nodes {
		if loads := k.Loads(nil, now()); len(loads) != 0 {
			t.Errorf("left over: %+v", loads)
		}
	}
}

func sameFacts(a, b *knower) (count uint64, same bool) {
	at := max(a.at, b.at)
	count, xor := a.facts(at)
	n, x := b.facts(at)
	return count, n == count && x == xor
}

func TestAllNewsTravels(t *testing.T) {
	t.Parallel()
	one, two := newKnower(t, "a"), newKnower(t, "a")
	one.at -= 5 * 60_000 // facts ahead of the clock count as now
	check := func(what string, want uint64, kind string) {
		t.Helper()
		tell(t, one, two)
		two.at = one.at
		if n, same := sameFacts(one, two); n != want || !same {
			t.Errorf("after %s there are %d facts, want %d; the other node knows the same: %v", what, n, want, same)
		}
		if one.Stats().Queued[kind] == 0 {
			t.Errorf("%s has posted nothing of its kind", what)
		}
	}
	prompt := chain(1, 16)
	begin := func() *policy.Attempt {
		a := new(policy.Attempt)
		one.q = policy.Request{Hashes: prompt, PromptBytes: len(prompt) * 512}
		if err := one.router.Pick(&one.q, one.at, a); err != nil {
			t.Fatal(err)
		}
		a.Dispatched(one.at)
		return a
	}
	a := begin()
	check("a placement", 16, "add")
	one.at += 60_000
	a.End(policy.Outcome{PromptTokens: 2048, CachedTokens: 0, OutputTokens: 5}, one.at)
	check("a long request", 16, "touch")

	other := prompt
	prompt = chain(2, 12)
	a = begin()
	check("another placement", 28, "add")
	a.End(policy.Outcome{Failed: books.Reset, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, one.at)
	check("its failure", 16, "revert")

	prompt = chain(3, 8)
	begin().End(policy.Outcome{PromptTokens: 1024, CachedTokens: 0, OutputTokens: 5}, one.at)
	check("a prompt that the engine will lose", 24, "add")
	prompt = other
	for range 3 { // none of the expected blocks is cached
		one.at += 20_000
		a = begin()
		one.at += 1000
		a.End(policy.Outcome{PromptTokens: 2048, CachedTokens: 0, OutputTokens: 5}, one.at)
	}
	check("a restart of the engine", 16, "fence")
}

func TestLearnedElsewhere(t *testing.T) {
	k := newKnower(t, "a")
	for seed := range 200 {
		k.serve(t, new(policy.Attempt), chain(seed, 20), -1)
	}
	before := k.tree.Horizon(0)
	k.receive(t, "one", appendClaims([]byte{version}, []Claim{{Key: prefixtree.BackendKey("a"), LRUDistance: Measure{400, 10}}}))
	if got := k.tree.Horizon(0); got >= before/2 {
		t.Errorf("a horizon of %v, %v before, after others have seen a cache of a tenth", got, before)
	}
	k.DropPeer("one")
	if got := k.tree.Horizon(0); got != before {
		t.Errorf("a horizon of %v, %v before those who told otherwise were there", got, before)
	}
	if blind := k.router.Stats().Blind; blind != 0 {
		t.Errorf("%d decisions were blind, by a node that is alone", blind)
	}
	k.router.SetFleet(3, time.Second)
	k.serve(t, new(policy.Attempt), chain(1, 20), -1)
	if blind := k.router.Stats().Blind; blind != 1 {
		t.Errorf("%d decisions were blind, of one beside nodes that tell nothing", blind)
	}
}
