package gossip

import (
	"os"
	"strconv"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/virtual"
	"grapevine.example/gossip/member"
)

const (
	faultPartition = iota // the membership notices
	faultCut
	faultOneWay // one of the two nodes believes the other dead
	faultKill
	faultLeave
	faultClock
	faultBreaks // of streams
	faultDelay
	faultGeneration
	faultForget
	virtualFaults
)

func (v *virtualFleet) cut(by int, directions ...[2]string) {
	v.net.mu.Lock()
	for _, d := range directions {
		v.cuts[d] += by
	}
	v.net.mu.Unlock()
	// memnet calls this with its lock held.
	v.net.setCut(func(a, b string) bool { return v.cuts[[2]string{a, b}] > 0 })
}

func (v *virtualFleet) meet(a, b *virtualNode) {
	if a.node == nil || b.node == nil || a == b {
		return
	}
	kind := member.Joined
	if v.cuts[[2]string{b.name, a.name}] > 0 {
		kind = member.Failed
	}
	a.node.inner.hear(kind, b.node.inner.self)
}

func (v *virtualFleet) strike(what int) {
	n := v.any()
	if n == nil {
		return
	}
	switch what {
	case faultPartition:
		v.partition()
	case faultCut, faultOneWay:
		m := v.any()
		if m == n {
			return
		}
		directions := [][2]string{{n.name, m.name}, {m.name, n.name}}
		lasts := v.between(200*time.Millisecond, 9*time.Second)
		if what == faultOneWay {
			directions = directions[:1]
			v.later(v.net.notice, func() { v.meet(m, n) })
		}
		v.note("cut %v for %v", directions, lasts)
		v.cut(1, directions...)
		v.later(lasts, func() { v.mend(directions) })
	case faultKill, faultLeave:
		v.end(n, what == faultKill)
	case faultClock:
		if !v.restless {
			return
		}
		step := v.between(-10*time.Minute, 10*time.Minute)
		if v.r.IntN(3) == 0 {
			step /= 1000
		}
		v.note("clock of %s by %v", n.name, step)
		n.offset.Add(int64(step))
	case faultBreaks:
		v.breaks = v.r.IntN(3) * v.r.IntN(100)
		v.note("streams break, %d per 1,000 nodes in a tick", v.breaks)
	case faultDelay:
		v.jitter.Store(int64(v.r.IntN(3)) * v.r.Int64N(int64(300*time.Millisecond)))
		v.note("delays up to %v", time.Duration(v.jitter.Load()))
	case faultGeneration:
		v.renew(v.r.IntN(virtualBackends - 1))
	case faultForget:
		b := v.r.IntN(virtualBackends - 1)
		v.note("%s finds backend %d empty", n.name, b)
		n.know.forget(b)
	}
}

func (v *virtualFleet) renew(b int) {
	v.generations[b]++
	g := v.generations[b]
	v.note("generation %d of backend %d", g, b)
	for _, n := range v.nodes {
		life := n.life
		v.later(v.between(0, 3*time.Second), func() {
			if n.node != nil && n.life == life {
				n.know.renew(b, g)
			}
		})
	}
}

func (v *virtualFleet) partition() {
	side := map[string]bool{}
	for _, n := range v.nodes {
		side[n.name] = v.r.IntN(2) == 0
	}
	var directions [][2]string
	for a := range side {
		for b := range side {
			if side[a] != side[b] {
				directions = append(directions, [2]string{a, b})
			}
		}
	}
	lasts := v.between(time.Second, 20*time.Second)
	v.note("partition for %v, %d nodes cut off", lasts, len(directions)/2)
	v.cut(1, directions...)
	v.later(v.net.notice, v.meetAll)
	v.later(lasts, func() { v.mend(directions) })
}

func (v *virtualFleet) mend(directions [][2]string) {
	v.cut(-1, directions...)
	v.later(time.Second, v.meetAll)
}

func (v *virtualFleet) meetAll() {
	for _, a := range v.nodes {
		for _, b := range v.nodes {
			v.meet(a, b)
		}
	}
}

func (v *virtualFleet) end(n *virtualNode, kill bool) {
	pause := v.between(0, 8*time.Second)
	v.note("%s ends (kill %v), again after %v", n.name, kill, pause)
	if kill {
		n.node.kill(v.t)
	} else {
		n.node.stop(v.t)
	}
	v.truth.end(n.know)
	n.node = nil
	v.later(pause, func() { v.begin(n) })
}

func (v *virtualFleet) trouble(lasts time.Duration) {
	swarm := virtual.NewSwarm(v.r, virtualFaults)
	until := time.Now().Add(lasts)
	next := time.Now()
	for step := 0; time.Now().Before(until); step++ {
		v.tick(100*time.Millisecond, 3)
		if time.Now().After(next) {
			v.strike(swarm.Next(v.r))
			next = time.Now().Add(v.between(100*time.Millisecond, 4*time.Second))
		}
		if step%10 == 0 {
			v.inspect()
		}
	}
	v.breaks = 0
	v.jitter.Store(0)
	for len(v.pending)+len(v.open) > 0 {
		v.tick(100*time.Millisecond, 0)
	}
	v.inspect()
}

const (
	settleWithin = 5 * time.Second
	heardWithin  = 10 * time.Second
)

// Under any faults no node believes an invented or fenced fact; afterwards all nodes agree.
func TestSeedsFleet(t *testing.T) {
	t.Parallel()
	size := 6
	if text := os.Getenv("GRAPEVINE_TEST_NODES"); text != "" {
		var err error
		if size, err = strconv.Atoi(text); err != nil || size < 2 {
			t.Fatalf("GRAPEVINE_TEST_NODES=%q", text)
		}
	}
	virtual.Seeds(t, 2, 8, func(t *testing.T, seed uint64) {
		bubble.Test(t, func(t *testing.T) {
			v := newVirtualFleet(t, seed, size)
			defer v.stop()
			v.note("seed %d: exact %v, clocks are set %v, journal %d, budget %d, flush %v", seed, v.exact, v.restless, v.journal, v.budget, v.flush)
			for _, n := range v.nodes {
				v.begin(n)
			}
			v.trouble(40 * time.Second)
			rest := v.rest(settleWithin)
			heard := v.probe(heardWithin)
			v.inspect()
			t.Logf("%d requests, %d faults; agreed after %v, heard after %v", v.requests, len(v.log), rest, heard)
		})
	})
}
