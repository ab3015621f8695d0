package policy

import (
	"math"
	"testing"

	"grapevine/prefixtree"
)

func TestWorkIsWhatRemains(t *testing.T) {
	r, _ := newRouter(t, Config{PrefillRate: 1000}, fleetOf(8))
	perBlock := testBlock / r.models.of(nil).bytesPerToken()
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

func TestExtentOfPrefix(t *testing.T) {
	var f extent
	next := uint64(0)
	see := func(common, n int) (blocks int) {
		for range n {
			next++
			blocks = f.add(prompt(7, next, common, 60), 2)
		}
		return blocks
	}
	if got := see(32, extentLeast); got != 2 {
		t.Errorf("after %d prompts it reaches to %d, want 2: too few to say", extentLeast, got)
	}
	if got := see(32, 1); got != 32 {
		t.Errorf("it reaches to %d, want 32", got)
	}
	if got := see(12, 200*extentEvery); got != 12 {
		t.Errorf("it reaches to %d, want 12", got)
	}
	for i := range 200 * extentEvery { // two equally popular continuations
		next++
		f.add(prompt(uint64(7+i/extentEvery%2), next, 40, 60), 2)
	}
	if got := f.add(prompt(7, 1, 40, 60), 2); got > 2 {
		t.Errorf("of two continuations it follows one, to %d", got)
	}
	if got := f.add(prompt(7, 1, 3, 3), 3); got != 3 {
		t.Errorf("a prompt that ends there reaches to %d, want 3", got)
	}
}

func TestBeginningsAreBounded(t *testing.T) {
	var b beginnings
	for i := range 100 * maxBeginnings {
		b.behind(prefixtree.Hash(i + 1000))
		if i%50 == 0 {
			b.behind(7).add(prompt(7, uint64(i), 12, 20), 1)
		}
	}
	if len(b.list) != maxBeginnings || len(b.index) != maxBeginnings {
		t.Errorf("%d and %d are kept", len(b.list), len(b.index))
	}
	if got := b.behind(7).add(prompt(7, 0, 12, 20), 1); got != 12 {
		t.Errorf("what was seen every fiftieth time reaches to %d, want 12", got)
	}
}

func TestWorkHasRoomForWhatIsPopular(t *testing.T) {
	var m workMeter
	held := m.place(1, t0)
	held.begin(1, true, t0)
	for i := range 5000 {
		if p := m.place(prefixtree.Hash(i+2), t0); p == nil {
			t.Fatalf("no place for the prefix %d", i+2)
		} else {
			p.rank = p.rank*p.fade(t0) + 1
			p.begin(1, true, t0)
			p.begin(1, true, t0)
			p.end(t0)
			p.end(t0)
		}
	}
	if len(m.list) != workAnchors || len(m.index) != workAnchors || m.index[1] != held || held.anchor != 1 {
		t.Errorf("%d places, %d names, the one in use is %x", len(m.list), len(m.index), held.anchor)
	}
	m.all.begin(1, true, t0)
	m.all.begin(1, true, t0)
	if told := m.tell(nil, 5, t0); len(told) != 1+workTold {
		t.Errorf("told %d", len(told))
	}
	for i := range m.list {
		m.list[i].begin(1, true, t0)
	}
	if m.place(9999, t0) != nil {
		t.Error("a place that requests hold was taken over")
	}
}

func TestConversationIsNotFresh(t *testing.T) {
	for _, c := range []struct {
		name          string
		shared        int
		conversations int
		grows         int // blocks a turn; 0: every prompt is a new conversation
		fresh         bool
	}{
		{"one conversation, beyond what is looked at", 0, 1, 4, false},
		{"six conversations behind one prefix", 40, 6, 6, false},
		{"prompts behind one prefix", 40, 1, 0, true},
		{"prompts behind one that ends between two anchors", 43, 1, 0, true},
		{"questions about a text longer than is looked at", 400, 1, 0, true},
	} {
		r, _ := newRouter(t, Config{PrefillRate: 1e4}, fleetOf(8))
		now := t0
		var last Work
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
		if len(works) < 2 {
			t.Fatalf("%s: told %+v", c.name, works)
		}
		requests := 0.0
		for _, w := range works[1:] {
			requests += w.Requests
			last.Fresh = max(last.Fresh, w.Fresh)
		}
		if requests < 10 || c.fresh && last.Fresh < 0.8*20 || !c.fresh && last.Fresh > 0.05*20 {
			t.Errorf("%s: of 20 requests a second %v come behind what is popular, and %v are fresh", c.name, requests, last.Fresh)
		}
	}
}
