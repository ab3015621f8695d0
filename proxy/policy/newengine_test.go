package policy

import (
	"fmt"
	"math"
	"testing"
	"time"

	"grapevine/chaos/virtual"
	"grapevine/prefixtree"
)

// line is an engine that computes one prompt after the other at the prior rate.
type line struct {
	open []*Attempt
	done []prefixtree.Time // first tokens, in order
}

func (l *line) advance(now prefixtree.Time) {
	for len(l.done) > 0 && l.done[0] <= now {
		l.open[0].FirstToken(l.done[0])
		l.open[0].End(unknown(), l.done[0])
		l.open, l.done = l.open[1:], l.done[1:]
	}
}

func (l *line) take(a *Attempt, now prefixtree.Time, took int64) {
	start := now
	if n := len(l.done); n > 0 {
		start = max(start, l.done[n-1])
	}
	a.Dispatched(now)
	l.open, l.done = append(l.open, a), append(l.done, start+prefixtree.Time(took))
}

// An engine that returns to a busy pool gets more than its share of new prompts, until its queue is as long as the others', but far
// from all, though every node sees it idle until the next reports: without pouring it gets four times its share.
func TestReturningEngineIsNotFlooded(t *testing.T) {
	const returns = 4
	first, all := 0, 0
	for seed := range uint64(returns) {
		a, b := returning(t, seed)
		first, all = first+a, all+b
	}
	fair := float64(all) / returningEngines
	if got := float64(first); got < fair/2 || got > 2.5*fair {
		t.Errorf("%d of %d prompts in its first second, its share is %.0f", first, all, fair)
	}
}

const returningEngines = 8

// returning returns how many of all prompts the last engine gets in the first second after its return.
func returning(t *testing.T, seed uint64) (first, all int) {
	t.Helper()
	const (
		n, nodes, blocks = returningEngines, 32, 8
		took             = blocks * testBlock / 4 * 1000 / defaultPrefillRate // ms
		perSecond        = 950 * (n - 1) / took                               // the others prefill 95 % of the time
		back             = 10                                                 // seconds
	)
	list := fleetOf(n)
	list[n-1].State = Down
	routers := among(t, nodes, time.Second, list)
	for _, r := range routers {
		r.DropPeer("others")
	}
	rnd := virtual.Rand(seed, 3)
	var engines [n]line
	for i := range (back + 1) * perSecond {
		now := t0 + prefixtree.Time(i*1000/perSecond)
		for b := range engines {
			engines[b].advance(now)
		}
		if i%perSecond == 0 {
			report(routers, now)
		}
		if i == back*perSecond {
			list[n-1].State, list[n-1].Generation = Active, 2
			for _, r := range routers {
				setView(t, r, list)
			}
		}
		a := pick(t, routers[rnd.IntN(nodes)], ask(prompt(uint64(i), 0, 0, blocks)), now)
		b := a.Decision().Backend
		engines[b].take(a, now, took)
		if i < back*perSecond {
			continue
		}
		if all++; b == n-1 {
			first++
		}
	}
	for b := range engines {
		engines[b].advance(math.MaxInt64)
	}
	return first, all
}

// report gives each router the loads and the traffic of all others.
func report(routers []*Router, now prefixtree.Time) {
	for i, r := range routers {
		sum := new(PopularitySum)
		for j, peer := range routers {
			if i != j {
				r.SetPeerLoad(fmt.Sprint("node-", j), peer.OwnLoads(nil, now))
				p := peer.OwnPopularity(4, now)
				sum.Add(&p)
			}
		}
		r.SetPeerPopularity(sum)
	}
}

// On one node an idle pool uses a new engine at once.
func TestIdlePoolUsesNewEngine(t *testing.T) {
	const n, requests = 4, 400
	for _, strategy := range builtin {
		list := fleetOf(n)
		r, _ := newRouter(t, Config{Strategy: strategy}, list[:n-1])
		for i := range requests {
			serve(t, r, newPrompt(i), t0+prefixtree.Time(100*i))
		}
		setView(t, r, list)
		got := 0
		for i := range requests {
			if serve(t, r, newPrompt(requests+i), t0+prefixtree.Time(100*(requests+i))).Backend == n-1 {
				got++
			}
		}
		if got < requests/n/2 || got > 2*requests/n {
			t.Errorf("%s: the new engine got %d of %d prompts", strategy, got, requests)
		}
	}
}

func newPrompt(i int) *Request {
	q := ask(prompt(uint64(i), 0, 8, 8))
	q.Session = fmt.Append(nil, "session-", i)
	return q
}
