package gossip

import (
	"fmt"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/gossip/member"
)

func (n *memnet) startAll(count int, adjust func(*Config)) []*testNode {
	n.t.Helper()
	var nodes []*testNode
	for i := range count {
		nodes = append(nodes, n.start(fmt.Sprintf("n%d", i), adjust))
	}
	n.connected(nodes)
	for _, node := range nodes {
		until(n.t, 15*time.Second, node.name+" is warm", node.warming.warm)
	}
	return nodes
}

func (f *Exchange) streams() (out []*subscription) {
	for _, p := range f.alive() {
		if s := p.open(); s != nil {
			out = append(out, s)
		}
	}
	return out
}

func (n *memnet) connected(nodes []*testNode) {
	n.t.Helper()
	until(n.t, 15*time.Second, "all nodes hear each other", func() bool {
		for _, node := range nodes {
			if len(node.streams()) != len(nodes)-1 {
				return false
			}
		}
		return true
	})
}

func stopAll(t *testing.T, nodes []*testNode) {
	t.Helper()
	for _, n := range nodes {
		n.stop(t)
	}
}

func TestNewsReachesEveryNodeWithinAFlush(t *testing.T) {
	for _, count := range []int{8, 32} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				nodes := net.startAll(count, nil)
				defer stopAll(t, nodes)
				for i, origin := range nodes[:8] {
					key := uint64(1000 + i)
					origin.know.learn(key, 1)
					until(t, defaultFlush+2*time.Millisecond+2*net.latency, "all know a fact of "+origin.name, func() bool {
						for _, n := range nodes {
							if !n.know.knows(key) {
								return false
							}
						}
						return true
					})
				}
				for _, n := range nodes {
					if twice := n.know.appliedTwice(); twice != "" {
						t.Errorf("%s applied %s", n.name, twice)
					}
					if s := n.Stats(); s.Resumes != 0 || s.MissedBatches != 0 {
						t.Errorf("%s: %d resumes, %d batches missed without a broken stream", n.name, s.Resumes, s.MissedBatches)
					}
				}
			})
		})
	}
}

func TestLoadFollowsAndEndsWithItsOrigin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(3, nil)
		defer stopAll(t, nodes[1:])
		a, b := nodes[0], nodes[1]
		until(t, time.Second, "an idle peer is heard of, too", func() bool { return b.know.peerLoad("n0") != nil })
		a.know.setLoad(1, 5000, 2)
		a.know.setLoad(2, 70, 1)
		soon := defaultFlush + 5*time.Millisecond
		until(t, soon, "load of two backends", func() bool {
			l := b.know.peerLoad("n0")
			return l[1] == load(1, 5000, 2) && l[2] == load(2, 70, 1)
		})
		a.know.setLoad(1, 0, 0)
		a.know.setLoad(2, 60, 1)
		until(t, soon, "one is idle, the other less busy", func() bool {
			l := b.know.peerLoad("n0")
			return len(l) == 1 && l[2] == load(2, 60, 1)
		})
		a.kill(t)
		until(t, net.notice/10, "load of a dead process is void before members agree on its death", func() bool { return b.know.peerLoad("n0") == nil })
		until(t, net.notice+2*time.Second, "the fleet is smaller", func() bool { n, _ := b.know.fleet(); return n == 2 })
		until(t, soon, "it is dropped again as its death is agreed", func() bool {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.dropped["n0"] == 2 && !b.know.left["n0"]
		})
	})
}

func TestUsageFollowsAndEndsWithItsOrigin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(3, nil)
		defer stopAll(t, nodes[1:])
		a, b := nodes[0], nodes[1]
		time.Sleep(time.Second)
		if n := a.Stats().SentByKind["usage"]; n != 0 {
			t.Errorf("%d frames without clients", n)
		}
		soon := defaultFlush + 5*time.Millisecond
		a.know.setUsage(Usage{Client: 1, Tokens: 500, InFlight: 2}, Usage{Client: 2, Tokens: 70})
		until(t, soon, "use of two clients", func() bool {
			u := b.know.peerUsage("n0")
			return u.incarnation == a.self.incarnation && len(u.uses) == 2 && u.uses[1] == Usage{Client: 1, Tokens: 500, InFlight: 2}
		})
		a.know.setUsage(Usage{Client: 2, Tokens: 60})
		until(t, soon, "one is idle", func() bool {
			u := b.know.peerUsage("n0")
			return len(u.uses) == 1 && u.uses[2] == Usage{Client: 2, Tokens: 60}
		})
		before := a.Stats().SentByKind["usage"]
		time.Sleep(time.Second)
		if n := a.Stats().SentByKind["usage"] - before; n > 2 { // full vectors
			t.Errorf("%d frames without changes", n)
		}
		a.kill(t)
		until(t, net.notice+time.Second, "use by a dead node is void", func() bool { return b.know.peerUsage("n0").uses == nil })
	})
}

// A peer is reported no earlier than its usage is known, and again after each break: until then, what it lets clients use would be
// used twice. And a node counts its peers as soon as it knows of them.
func TestReportedPeersUsageIsKnown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		var nodes []*testNode
		know := func(m *model) {
			m.setUsage(Usage{Client: 1, Tokens: 500, InFlight: 2})
			m.loadHook = func(origin string) { // before its load
				if len(m.peerUsage(origin).uses) == 0 {
					t.Errorf("the load of %s came before its usage", origin)
				}
			}
		}
		reported := func(n *testNode) (count int) {
			for _, p := range n.Peers() {
				if p.Reported {
					count++
				}
			}
			return count
		}
		for i := range 3 {
			nodes = append(nodes, net.start(fmt.Sprint("n", i), func(c *Config) { know(c.Knowledge.(*model)) }))
		}
		defer stopAll(t, nodes)
		for _, n := range nodes {
			until(t, 5*time.Second, "all members", func() bool { return len(n.Peers()) == 2 })
			until(t, 5*time.Millisecond, "it counts them", func() bool { count, _ := n.know.fleet(); return count == 3 })
			until(t, 5*time.Second, "all peers are reported", func() bool { return reported(n) == 2 })
		}
		for _, s := range nodes[0].streams() {
			s.end(errGone)
		}
		until(t, 20*time.Millisecond, "broken streams report nothing", func() bool { return reported(nodes[0]) == 0 })
		until(t, 5*time.Second, "they are reported again", func() bool { return reported(nodes[0]) == 2 })
	})
}

// A new process of which a node hears before the end of the former one: this may still run requests.
func TestUnseenEndOfAProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		a, b := nodes[0], nodes[1]
		a.know.setUsage(Usage{Client: 1, Tokens: 500, InFlight: 2})
		until(t, time.Second, "its use", func() bool { return len(b.know.peerUsage("n0").uses) == 1 })
		info := b.Peers()[0].Info
		info.Incarnation++
		b.onEvent(member.Event{Kind: member.Updated, Member: info})
		until(t, time.Second, "its process has another one in its place", func() bool {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.dropped["n0"] == 1 && b.know.left["n0"]
		})
	})
}

func TestFiguresFollowAndEndWithTheirOrigin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes[1:])
		a, b := nodes[0], nodes[1]
		figure := func(key uint32) (f Figure) {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.figured["n0"][key]
		}
		set := func(figures ...Figure) {
			a.know.mu.Lock()
			defer a.know.mu.Unlock()
			a.know.figures = figures
		}
		soon := figuresInterval + 2*defaultFlush
		set(Figure{Key: 1, Low: 7, High: 2}, Figure{Key: 2, Low: 1})
		until(t, soon, "both figures", func() bool {
			return figure(1) == Figure{Key: 1, Low: 7, High: 2} && figure(2) == Figure{Key: 2, Low: 1}
		})
		set(Figure{Key: 1, Low: 8, High: 2})
		until(t, soon, "the changes", func() bool { return figure(1) == Figure{Key: 1, Low: 8, High: 2} && figure(2) == Figure{Key: 2} })
		before := a.Stats().SentByKind["figures"]
		time.Sleep(5 * time.Second)
		if n := a.Stats().SentByKind["figures"] - before; n > 60 { // full vectors
			t.Errorf("%d bytes without changes", n)
		}
		a.kill(t)
		until(t, net.notice+time.Second, "figures of a dead node are void", func() bool { return figure(1) == Figure{} })
	})
}

// Claims replace the previous ones within a flush, cost nothing while they do not change, and end with their
// origin. A node that never had any sends none.
func TestClaimsFollowAndEndWithTheirOrigin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes[1:])
		a, b := nodes[0], nodes[1]
		claims := func() string {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.claimed["n0"]
		}
		set := func(claims string) {
			a.know.mu.Lock()
			defer a.know.mu.Unlock()
			a.know.claims = claims
		}
		for _, text := range []string{"seven wait", "", "two wait"} {
			set(text)
			until(t, 3*defaultFlush, "claims "+text, func() bool { return claims() == text })
		}
		before := a.Stats().SentByKind["claims"]
		time.Sleep(5 * time.Second)
		if n := a.Stats().SentByKind["claims"] - before; n > 0 {
			t.Errorf("%d bytes without changes", n)
		}
		if n := b.Stats().SentByKind["claims"]; n > 0 {
			t.Errorf("%d bytes of a node without claims", n)
		}
		a.kill(t)
		until(t, net.notice+time.Second, "claims of a dead node are void", func() bool { return claims() == "" })
	})
}

func TestStateIsSentWhenItChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		a, b := nodes[0], nodes[1]
		a.know.mu.Lock()
		a.know.state = "horizons"
		a.know.mu.Unlock()
		until(t, 2*stateInterval, "state", func() bool {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.states["n0"] == "horizons"
		})
		sent := a.Stats().SentByKind["state"]
		time.Sleep(5 * stateInterval)
		if again := a.Stats().SentByKind["state"]; again != sent {
			t.Errorf("unchanged state was sent again: %d bytes, then %d", sent, again)
		}
	})
}

func TestTouchedStateIsSentSoon(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		a, b := nodes[0], nodes[1]
		time.Sleep(stateInterval)
		set := func(state string) {
			a.know.mu.Lock()
			a.know.state = state
			a.know.mu.Unlock()
			a.Touch()
		}
		has := func(state string) bool {
			b.know.mu.Lock()
			defer b.know.mu.Unlock()
			return b.know.states["n0"] == state
		}
		set("engine 3 fails")
		until(t, 2*stateGap, "state", func() bool { return has("engine 3 fails") })
		sent := a.Stats().SentByKind["state"]
		var last string
		for i := range 1000 {
			last = fmt.Sprintf("news %04d of a storm", i)
			set(last)
			time.Sleep(time.Millisecond)
		}
		until(t, 2*stateGap, "the last of the storm", func() bool { return has(last) })
		if states := (a.Stats().SentByKind["state"] - sent) / uint64(len(last)); states > 20 {
			t.Errorf("%d states in a second", states)
		}
	})
}

func TestRestartedOriginStartsAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(3, nil)
		defer stopAll(t, nodes[1:])
		a, b := nodes[0], nodes[1]
		a.know.setLoad(1, 10, 1)
		for i := range 5 {
			a.know.learn(uint64(i), 1)
			time.Sleep(100 * time.Millisecond)
		}
		a.kill(t)
		time.Sleep(100 * time.Millisecond) // back before its peers noticed
		again := net.start("n0", nil)
		defer again.stop(t)
		again.know.setLoad(2, 20, 2)
		again.know.learn(77, 1)
		until(t, 5*time.Second, "news of the new process", func() bool { return b.know.knows(77) })
		until(t, time.Second, "its load, and not the old one's", func() bool {
			l := b.know.peerLoad("n0")
			return len(l) == 1 && l[2] == load(2, 20, 2)
		})
		until(t, 10*time.Second, "the new process knows what the old one did", func() bool { return again.know.knows(4) })
		if !b.know.knows(4) {
			t.Error("facts of the old process were forgotten")
		}
		time.Sleep(2 * net.notice)
		if b.know.peerLoad("n0") == nil {
			t.Error("late death of the old process voided the load of the new one")
		}
		if twice := b.know.appliedTwice(); twice != "" {
			t.Errorf("applied %s", twice)
		}
	})
}

func TestClocksThatDifferAreCorrected(t *testing.T) {
	var c clockFilter
	const ahead = int64(90 * time.Second)
	ms := int64(time.Millisecond)
	c.add(0, 50*ms+ahead, 51*ms+ahead, 52*ms)
	c.add(100*ms, 101*ms+ahead, 103*ms+ahead, 104*ms)
	got, ok := c.best()
	if !ok || got.rtt != 2*time.Millisecond || got.offset != -90*time.Second {
		t.Errorf("rtt %v, offset %v", got.rtt, got.offset)
	}
	for _, bad := range [][4]int64{{10, 0, 0, 5}, {0, 10, 30, 5}} {
		c.add(bad[0], bad[1], bad[2], bad[3])
	}
	if c.n != 2 {
		t.Errorf("samples that cannot be were taken: %d", c.n)
	}
}

func TestStalenessIsThatOfThreeQuarters(t *testing.T) {
	ms := func(v ...int) (d []time.Duration) {
		for _, n := range v {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	for _, c := range []struct {
		lags []time.Duration
		want time.Duration
	}{
		{nil, 0},
		{ms(30), 30 * time.Millisecond},
		{ms(30, 900), 900 * time.Millisecond},
		{ms(30, 30, 900), 900 * time.Millisecond},
		{ms(30, 30, 40, 900), 40 * time.Millisecond},
		{ms(1, 2, 3, 4, 5, 6, 9000), 6 * time.Millisecond},
		{ms(1, 2, 3, 4, 5, 8000, 9000), 8 * time.Second},
	} {
		want := c.want
		if len(c.lags) > 0 {
			want += defaultFlush
		}
		if got := staleness(c.lags, defaultFlush); got != want {
			t.Errorf("%v: %v, want %v", c.lags, got, want)
		}
	}
}

func TestLagForgetsAnOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		lag := func() time.Duration { return nodes[1].Peers()[0].Lag }
		net.partition(func(name string) bool { return name == "n1" })
		for i := range uint64(400) {
			nodes[0].know.learn(i, 1)
			time.Sleep(defaultFlush)
		}
		if lag() < 15*time.Second {
			t.Errorf("lag %v after 20 s of silence", lag())
		}
		net.setCut(nil)
		until(t, 10*time.Second, "what was said meanwhile", func() bool { return allKnow(nodes) })
		time.Sleep(pingInterval)
		if lag() > 50*time.Millisecond {
			t.Errorf("lag %v of a peer that is idle and heard", lag())
		}
	})
}

func TestLagOfAnIdlePeerIsMeasured(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		p := nodes[1].peer("n0")
		p.mu.Lock()
		p.Lag, p.lagged = 10*time.Second, true
		p.mu.Unlock()
		time.Sleep(30 * pingInterval)
		if lag := nodes[1].Peers()[0].Lag; lag > 50*time.Millisecond {
			t.Errorf("lag %v after 30 pings", lag)
		}
	})
}

func TestStalenessIsMeasured(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.latency = 40 * time.Millisecond
		nodes := net.startAll(4, nil)
		defer stopAll(t, nodes)
		until(t, 10*time.Second, "four nodes, 40 ms apart", func() bool {
			for i, n := range nodes {
				n.know.learn(uint64(i), uint64(time.Now().UnixMilli()))
			}
			time.Sleep(20 * time.Millisecond)
			count, stale := nodes[0].know.fleet()
			return count == 4 && stale > 80*time.Millisecond && stale < 100*time.Millisecond // and a flush
		})
		for _, p := range nodes[0].Peers() {
			if p.RTT != 80*time.Millisecond || p.Offset != 0 || !p.Connected {
				t.Errorf("%s: rtt %v, offset %v, connected %v", p.Name, p.RTT, p.Offset, p.Connected)
			}
		}
		net.notice = time.Hour
		net.partition(func(name string) bool { return name == "n0" })
		time.Sleep(4 * time.Second)
		if _, stale := nodes[0].know.fleet(); stale < 2*time.Second || stale > 4*time.Second {
			t.Errorf("staleness %v after 4 s of silence", stale)
		}
		until(t, voidAfter, "load of the silent is void", func() bool { return nodes[0].know.peerLoad("n1") == nil })
	})
}

func TestBytesGoOnOverReconnections(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		sent := func() uint64 { return nodes[0].Peers()[0].SentBytes }
		for fact := range uint64(1000) {
			nodes[0].know.learn(fact, 1)
		}
		until(t, time.Second, "the other one knows", func() bool { return nodes[1].know.knows(999) })
		before := sent()

		connects := nodes[1].Peers()[0].Connects
		nodes[0].listSubscribers()[0].conn.Close()
		until(t, 10*time.Second, "it has connected again", func() bool {
			p := nodes[1].Peers()[0]
			if now := sent(); now < before {
				t.Fatalf("from %d bytes sent back to %d", before, now)
			}
			return p.Connects > connects && p.Connected
		})
	})
}
