package policy

import (
	"math"
	"slices"
	"testing"

	"grapevine.example/chaos/bubble"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

func TestWorkIsWhatRemains(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(8))
	rated(r, 1000)
	perBlock := testBlock / r.table.Load().all.texts.bytesPerToken()
	var open []*Attempt
	now := t0
	for i := range 400 {
		now += 50
		q := prompt(99, uint64(i)+5000, 0, 8)
		if i%2 == 0 {
			q = prompt(7, uint64(i), 32, 40)
		}
		a := pick(t, r, ask(q), now)
		a.Dispatched(now)
		a.FirstToken(now)
		if open = append(open, a); len(open) > 20 {
			open[0].End(unknown(), now)
			open = open[1:]
		}
	}
	works := r.OwnWork(4, now)
	if len(works) < 2 || works[0].Anchor != 0 {
		t.Fatalf("told %+v", works)
	}
	all, hot := works[0], works[1]
	if want := prompt(7, 0, 32, 40)[31]; hot.Anchor != want || math.Abs(hot.Tokens-32*perBlock) > perBlock {
		t.Fatalf("the prefix ends at %x, %v tokens, want %x, %v", hot.Anchor, hot.Tokens, want, 32*perBlock)
	}
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 0.15*want {
			t.Errorf("%s is %v, want about %v", name, got, want)
		}
	}
	rate := r.Rate(0)
	near("rate of its requests", hot.Requests, 10)
	near("of these fresh", hot.Fresh, 10)
	near("its work", hot.Prefill, 10*8*perBlock/rate)
	near("rate of all requests", all.Requests, 20)
	near("all work", all.Prefill, 20*8*perBlock/rate)
	near("its requests at once", hot.Active, 10)
	near("all requests at once", all.Active, 20)
	for _, a := range open {
		a.End(unknown(), now)
	}
	later := r.OwnWork(4, now+60_000)
	for _, w := range later {
		if w.Prefill > 0.02*all.Prefill || w.Active > 0.5 {
			t.Errorf("a minute later there is still %+v", w)
		}
	}
}

// diverges returns the number of leading blocks of a prompt that are common.
func diverges(t *testing.T, r *Router, hashes []prefixtree.Hash, now prefixtree.Time) (blocks int) {
	t.Helper()
	var d Decision
	if err := r.Explain(ask(hashes), now, &d); err != nil {
		t.Fatal(err)
	}
	return slices.Index(hashes, d.Branch)
}

// A system prompt is common within a few requests; what only the turns of one conversation share never is.
func TestSystemPromptIsCommonAndConversationsAreNot(t *testing.T) {
	bubble.SkipInRace(t)
	const system, grows, few = 22, 3, 6
	for _, c := range []struct{ engines, conversations, turns int }{{2, 1, 40}, {8, 1, 400}, {8, 6, 40}, {8, 300, 8}, {200, 40, 40}} {
		r, _ := newRouter(t, Config{}, fleetOf(c.engines))
		now, asked := t0, 0
		for turn := range c.turns {
			for talk := range c.conversations {
				now += 100
				hashes := prompt(1, uint64(talk), system, 30+grows*turn)
				want := system
				if c.conversations == 1 || asked < few {
					want = 0
				}
				if got := diverges(t, r, hashes, now); got != want && (got != system || asked >= few) {
					t.Fatalf("%+v, turn %d of conversation %d: %d blocks are common, want %d", c, turn, talk, got, want)
				}
				serve(t, r, ask(hashes), now)
				asked++
			}
		}
	}
}

// After a while one prompt in 300 begins alike; the others are the turns of 20 conversations at a time, each with its own beginning.
func TestPopularAmongConversations(t *testing.T) {
	bubble.SkipInRace(t)
	const alike, turns, talks, requests = 22, 10, 20, 12_000
	r, _ := newRouter(t, Config{}, fleetOf(250))
	now, found := t0, 0
	for i := range uint64(requests) {
		now++ // so many that those which begin alike keep an engine busy
		blocks := 30 + 5*int(i/talks%turns)
		q, popular := prompt(1000+i%talks+i/(talks*turns)*talks, 0, blocks, blocks), i%300 == 0 && i > requests/4
		if popular {
			q = prompt(7, i, alike, 30)
		}
		got := diverges(t, r, q, now)
		if got != 0 && !(popular && got == alike) {
			t.Fatalf("request %d: %d blocks are common", i, got)
		}
		if got > 0 && i > requests/2 {
			found++
		}
		serve(t, r, ask(q), now)
	}
	if found < requests/2/300*8/10 {
		t.Errorf("%d of %d prompts with a popular beginning were found", found, requests/2/300)
	}
}

func TestConversationIsNotFresh(t *testing.T) {
	for _, c := range []struct {
		name          string
		shared        int
		conversations int
		grows         int // blocks a turn; 0: every prompt is a new conversation
		popular       bool
		fresh         bool
	}{
		{"one conversation, beyond what is looked at", 0, 1, 4, false, false},
		{"six conversations behind one prefix", 40, 6, 6, true, false},
		{"prompts behind one prefix", 40, 1, 0, true, true},
		{"prompts behind one that ends between two anchors", 43, 1, 0, true, true},
		{"questions about a long text", 400, 1, 0, true, true},
	} {
		r, _ := newRouter(t, Config{}, fleetOf(8))
		now := t0
		var last demand.Work
		for i := range 360 {
			now += 50
			turn, which := i/c.conversations, uint64(i%c.conversations)
			q := prompt(7, uint64(i)+1000, c.shared, c.shared+8)
			if c.grows > 0 {
				talk := prompt(0, 50+which, 0, 120+c.grows*turn)
				q = append(prompt(7, 0, c.shared, c.shared), talk...)
			}
			a := pick(t, r, ask(q), now)
			a.Dispatched(now)
			a.FirstToken(now)
			a.End(unknown(), now)
		}
		works := r.OwnWork(1, now)
		if popular := len(works) > 1; popular != c.popular {
			t.Fatalf("%s: told %+v", c.name, works)
		}
		requests := 0.0
		for _, w := range works[1:] {
			requests += w.Requests
			last.Fresh = max(last.Fresh, w.Fresh)
		}
		if c.popular && requests < 10 || c.fresh && last.Fresh < 0.8*20 || !c.fresh && last.Fresh > 0.05*20 {
			t.Errorf("%s: of 20 requests a second %v come behind what is popular, and %v are fresh", c.name, requests, last.Fresh)
		}
	}
}

// What four prompts left, each at another node, is common at all nodes, also at one that has seen none of them. A conversation whose turns
// come by different nodes is not.
func TestNodesCountPrefixesTogether(t *testing.T) {
	const system, nodes, few = 22, 6, 8
	for _, c := range []struct {
		what string
		ask  func(i int) []prefixtree.Hash
		want int
	}{
		{"a system prompt", func(i int) []prefixtree.Hash { return prompt(1, uint64(i), system, 30) }, system},
		{"a conversation", func(i int) []prefixtree.Hash { return prompt(1, 1, system, 30+3*i) }, 0},
	} {
		var routers []*Router
		_, tree := newRouter(t, Config{}, fleetOf(8))
		for range nodes {
			r, err := NewRouter(Config{Nodes: nodes, BlockBytes: testBlock}, tree) // placements travel at once
			if err != nil {
				t.Fatal(err)
			}
			setView(t, r, fleetOf(8))
			routers = append(routers, r)
		}
		now := t0
		for i := range few {
			now += 100
			serve(t, routers[i%(nodes-1)], ask(c.ask(i)), now)
		}
		exchange := func() {
			for i, r := range routers {
				sum := demand.Report{}
				for j, other := range routers {
					for _, one := range other.OwnTraffic(4, now) {
						if j != i && one.Pool == r.table.Load().all.key {
							sum.Pool, sum.Prefixes = one.Pool, append(sum.Prefixes, one.Prefixes...)
						}
					}
				}
				r.SetPeerTraffic(map[uint64]demand.Report{sum.Pool: summed(sum)})
			}
		}
		if got := diverges(t, routers[nodes-1], c.ask(few), now); got != 0 {
			t.Errorf("%s: %d blocks are common before the nodes exchange counts", c.what, got)
		}
		for range 3 { // counts stay what they are
			exchange()
		}
		for i, r := range routers {
			if got := diverges(t, r, c.ask(few+i), now); got != c.want {
				t.Errorf("%s: %d blocks are common at node %d, want %d", c.what, got, i, c.want)
			}
		}
		for _, r := range routers {
			r.SetPeerTraffic(nil)
		}
		if got := diverges(t, routers[nodes-1], c.ask(few), now); got != 0 {
			t.Errorf("%s: %d blocks are common when the other nodes are gone", c.what, got)
		}
	}
}

func summed(t demand.Report) demand.Report {
	var sum []demand.Count
	for _, c := range t.Prefixes {
		i := slices.IndexFunc(sum, func(s demand.Count) bool { return s.Anchor == c.Anchor })
		if i < 0 {
			i, sum = len(sum), append(sum, demand.Count{Anchor: c.Anchor})
		}
		sum[i].Requests += c.Requests
		sum[i].Left += c.Left
	}
	t.Prefixes = sum
	return t
}
