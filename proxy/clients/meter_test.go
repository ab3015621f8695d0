package clients

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

// seeded prints the seed of a random test; GV_SEED repeats one.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("GV_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("GV_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func adopted(t testing.TB, list ...*Client) *Meter {
	t.Helper()
	m := NewMeter()
	m.Adopt(&Book{Clients: list})
	return m
}

func TestMeterOfOneNode(t *testing.T) {
	c := &Client{Name: "c", TokensPerMinute: 6000, InFlight: 2}
	m := adopted(t, c)
	now := time.Hour
	reserve := func(prompt, output int, want Reason) *Reservation {
		t.Helper()
		r, why := m.Reserve(c, prompt, output, now)
		if why != want {
			t.Fatalf("%d+%d tokens: %v, want %v: %+v", prompt, output, why, want, m.Standing(c, 0, Admitted, now))
		}
		return &r
	}
	a, b := reserve(1000, 2000, Admitted), reserve(1000, 0, Admitted)
	reserve(1, 1, InFlight)
	if s := m.Standing(c, 0, InFlight, now); s.TokensUsed != 4000 || s.TokensLeft != 2000 || s.Left != 0 || s.InFlight != 2 || s.TokensReset != 40*time.Second || s.Wait != time.Second {
		t.Errorf("%+v", s)
	}
	m.Release(a, Spent{Prompt: 1200, Output: 300}, now)
	m.Release(a, Spent{}, now)
	m.Release(b, Spent{}, now)
	if s := m.Standing(c, 0, Admitted, now); s.TokensUsed != 1500 || s.InFlight != 0 {
		t.Errorf("after the releases: %+v", s)
	}
	// Without max_tokens the mean of the answers counts.
	m.Release(reserve(1000, 0, Admitted), Spent{Prompt: -1, Output: -1}, now)
	if s := m.Standing(c, 0, Admitted, now); s.TokensUsed != 2800 {
		t.Errorf("usage unknown: %+v", s)
	}
	reserve(4000, 0, Tokens)
	if s := m.Standing(c, 4300, Tokens, now); s.Wait != 11*time.Second {
		t.Errorf("%+v", s)
	}
	now += 11 * time.Second
	m.Release(reserve(4000, 0, Admitted), Spent{Prompt: 4000, Output: 300}, now)
	// A request beyond the limit is admitted when nothing is used.
	now += 59 * time.Second
	reserve(9000, 0, Tokens)
	now += 2 * time.Second
	m.Release(reserve(9000, 1, Admitted), Spent{Prompt: -1, Output: -1}, now)
	reserve(1, 1, Tokens)
	// A client that a new file limits less keeps its use.
	next := &Client{Name: "c", TokensPerMinute: 60_000}
	m.Adopt(&Book{Clients: []*Client{next}})
	if s := m.Standing(next, 0, Admitted, now); s.TokensUsed != 9001 || s.TokensLeft != 50_999 {
		t.Errorf("after a change of the file: %+v", s)
	}
	if r, why := m.Reserve(c, 1<<40, 0, now); why != Admitted || r.account != nil {
		t.Error("a client of before has limits")
	}
}

// Any mix of outcomes returns all reservations.
func TestMeterReturnsAll(t *testing.T) {
	random := seeded(t)
	c := &Client{Name: "c", TokensPerMinute: 100_000, InFlight: 30}
	m := adopted(t, c)
	var held []*Reservation
	now := time.Hour
	for range 20_000 {
		now += time.Duration(random.IntN(50)) * time.Millisecond
		if r, why := m.Reserve(c, random.IntN(500), random.IntN(500), now); why == Admitted {
			held = append(held, &r)
		}
		for len(held) > random.IntN(40) {
			i := random.IntN(len(held))
			m.Release(held[i], Spent{Prompt: random.IntN(500) - 1, Output: random.IntN(500) - 1}, now)
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if s := m.Standing(c, 0, Admitted, now); s.InFlight != len(held) || s.InFlight > 30 {
			t.Fatalf("%d requests: %+v", len(held), s)
		}
	}
	for _, r := range held {
		m.Release(r, Spent{}, now)
	}
	if s := m.Standing(c, 0, Admitted, now+2*time.Minute); s.InFlight != 0 || s.TokensUsed != 0 || s.TokensLeft != 100_000 {
		t.Errorf("%+v", s)
	}
	m.Own(nil, now+2*time.Minute)
	if own := m.Own(nil, now+4*time.Minute); len(own) != 0 || len(m.active) != 0 {
		t.Errorf("still reported: %v", own)
	}
}

// What is left of a peer's processes does not grow with their number, also for a client of whose tokens nothing leaks.
func TestMeterForgetsEndedProcesses(t *testing.T) {
	c := &Client{Name: "c", InFlight: 100}
	m := adopted(t, c)
	use := []Use{{Client: NameKey(c.Name), InFlight: 3}}
	for process := range uint64(50) {
		m.Peer("peer", process, use, true, time.Hour)
	}
	a := m.byKey[NameKey(c.Name)]
	if s := m.Standing(c, 0, Admitted, time.Hour); len(a.peers) != 1 || s.InFlight != 3 {
		t.Errorf("the use of %d processes is kept: %+v", len(a.peers), s)
	}
	m.DropPeer("peer", false, time.Hour)
	if s := m.Standing(c, 0, Admitted, time.Hour); len(a.peers) != 0 || s.InFlight != 0 {
		t.Errorf("the use of %d processes is kept of a dead peer: %+v", len(a.peers), s)
	}
}

// meterFleet is nodes whose reports take up to delay, in virtual time.
type meterFleet struct {
	nodes []*meterNode
	now   time.Duration
	delay time.Duration
	cut   func(from, to int) bool
}

type meterNode struct {
	*Meter
	process uint64
	inbox   []meterReport
	dead    bool
	leaves  bool // it hears and reports nothing any more, and serves until another process takes its place
}

type meterReport struct {
	at      time.Duration
	from    int
	process uint64
	uses    []Use
}

const meterTick = 10 * time.Millisecond

// turn publishes and delivers full reports. heard is who each node hears.
func (f *meterFleet) turn(random *rand.Rand) {
	f.now += meterTick
	for i, n := range f.nodes {
		if n.dead || n.leaves {
			continue
		}
		if f.now%(50*time.Millisecond) == 0 {
			uses := n.Own(nil, f.now)
			for j, to := range f.nodes {
				if j != i && !to.dead && !to.leaves && !f.cut(i, j) {
					at := f.now + time.Duration(random.Int64N(int64(f.delay-50*time.Millisecond)))
					to.inbox = append(to.inbox, meterReport{at, i, n.process, uses})
				}
			}
		}
		later := n.inbox[:0]
		passed := make(map[int]bool)
		for _, r := range n.inbox {
			if r.at > f.now || passed[r.from] { // streams do not reorder
				passed[r.from] = true
				later = append(later, r)
				continue
			}
			n.Peer(strconv.Itoa(r.from), r.process, r.uses, true, f.now)
		}
		n.inbox = later
	}
}

// Over eight nodes with random ingress, clients that ask for several times their limits stay within the bound, also while a node
// dies, returns, the fleet is divided, and a node's process is replaced; and they get most of what they may use.
func TestMeterBoundOverFleet(t *testing.T) {
	bubble.SkipInRace(t)
	random := seeded(t)
	const nodes, metered, limit, most, perRequest = 8, 8, 60_000, 40, 300
	const staleness = 100 * time.Millisecond
	var list []*Client
	for i := range metered {
		list = append(list, &Client{Name: fmt.Sprint("c", i), TokensPerMinute: limit, InFlight: most})
	}
	for i := range 2 { // tokens never hold them back
		list = append(list, &Client{Name: fmt.Sprint("free", i), InFlight: most})
	}
	f := &meterFleet{now: time.Hour, delay: staleness, cut: func(int, int) bool { return false }}
	for range nodes {
		f.nodes = append(f.nodes, &meterNode{Meter: adopted(t, list...), process: 1})
	}
	type request struct {
		node   *meterNode
		client int
		r      *Reservation
		end    time.Duration
	}
	var running []request
	level, inFlight := make([]float64, len(list)), make([]int, len(list))
	ended := make([][]time.Duration, len(list))
	overTokens, overRequests, admitted := 0., 0, 0.
	from := f.now
	join := func(process uint64, at int) *meterNode { // streams begin with full reports
		n := &meterNode{Meter: adopted(t, list...), process: process}
		for i, peer := range f.nodes {
			if i != at {
				n.Peer(strconv.Itoa(i), peer.process, peer.Own(nil, f.now), true, f.now)
			}
		}
		return n
	}
	var old, next *meterNode // next replaces old
	silentFrom, silentUntil := time.Duration(0), time.Duration(0)
	phase := func(at time.Duration) bool { return f.now-from == at }
	for f.now-from < 6*time.Minute {
		switch {
		case phase(time.Minute):
			f.nodes[3].dead = true
			for _, n := range f.nodes {
				n.DropPeer("3", false, f.now)
			}
			silentFrom = f.now
		case phase(90 * time.Second):
			f.nodes[3] = join(2, 3)
		case phase(2 * time.Minute):
			f.cut = func(a, b int) bool { return (a < 3) != (b < 3) }
			silentFrom, silentUntil = f.now+time.Second, f.now+3*time.Second
		case phase(3 * time.Minute):
			f.cut = func(int, int) bool { return false }
		case phase(5 * time.Minute):
			old = f.nodes[5]
			old.leaves = true
			for i, n := range f.nodes {
				if i != 5 { // streams bring nothing more of a peer that has left
					n.inbox = slices.DeleteFunc(n.inbox, func(r meterReport) bool { return r.from == 5 })
					n.DropPeer("5", true, f.now)
				}
			}
			next = join(2, 5)
			next.Predecessor(old.HandOn(nil, f.now), f.now)
		case phase(5*time.Minute + 2*time.Second):
			f.nodes[5] = next
		}
		if old != nil && f.nodes[5] == next && f.now%(50*time.Millisecond) == 0 {
			next.Predecessor(old.HandOn(nil, f.now), f.now)
			old.Successor(next.HandBack(nil, f.now), f.now)
		}
		divided := f.cut(0, 7)
		for i, n := range f.nodes {
			fleet := Fleet{Heard: nodes, Nodes: nodes, Staleness: staleness, Silent: f.now >= silentFrom && f.now < silentUntil}
			switch {
			case divided && f.now >= silentUntil && i < 3:
				fleet.Heard = 3
			case divided && f.now >= silentUntil:
				fleet.Heard = 5
			case f.nodes[3].dead, f.nodes[5].leaves:
				fleet.Heard = nodes - 1
			}
			if n.leaves {
				fleet = n.Fleet()
			}
			if n == next {
				fleet.Processes = 2
			}
			if old != nil { // it keeps what it knew
				kept := old.Fleet()
				kept.Silent, kept.Processes = true, 2
				old.SetFleet(kept)
			}
			n.SetFleet(fleet)
		}
		f.turn(random)
		kept := running[:0]
		for _, q := range running {
			if !q.node.dead && f.now < q.end {
				kept = append(kept, q)
				continue
			}
			inFlight[q.client]--
			ended[q.client] = append(ended[q.client], f.now)
			if !q.node.dead {
				q.node.Release(q.r, Spent{Prompt: -1, Output: -1}, f.now)
			}
		}
		running = kept
		for c := range list {
			ended[c] = slices.DeleteFunc(ended[c], func(at time.Duration) bool { return f.now-at > 2*staleness })
			level[c] = max(0, level[c]-limit*meterTick.Seconds()/60)
			for range random.IntN(4) * 2 {
				i, longest := random.IntN(nodes), 3000
				if at := f.now - from; at > 5*time.Minute-15*time.Second && at < 5*time.Minute {
					i, longest = 5, 10_000 // what is in flight then is at the process that is replaced
				}
				n := f.nodes[i]
				if n == next && f.now-from < 5*time.Minute+5*time.Second && random.IntN(2) == 0 {
					n = old // both have clients' connections
				}
				if !n.dead {
					if r, why := n.Reserve(list[c], perRequest/2, perRequest/2, f.now); why == Admitted {
						if list[c].TokensPerMinute > 0 {
							level[c] += perRequest
							admitted += perRequest
						}
						inFlight[c]++
						overRequests = max(overRequests, inFlight[c]-most-len(ended[c]))
						running = append(running, request{n, c, &r, f.now + time.Duration(random.IntN(longest))*time.Millisecond})
					}
				}
			}
			overTokens = max(overTokens, level[c]-limit)
		}
	}
	may := metered * limit * (1 + (f.now - from).Minutes())
	t.Logf("over by %.0f tokens and %d requests that did not just end; admitted %.2f of what the limits allow", overTokens, overRequests, admitted/may)
	if bound := limit*staleness.Minutes()*nodes + perRequest*nodes; overTokens > bound {
		t.Errorf("%.0f tokens beyond the limit, want at most %.0f", overTokens, bound)
	}
	if overRequests > nodes {
		t.Errorf("%d requests beyond the limit, want at most %d", overRequests, nodes)
	}
	if admitted < 0.8*may {
		t.Errorf("%.2f of what the limits allow", admitted/may)
	}
}

// A router that is alone and the process that replaces it stay within the limits together, from whatever its clients use at the
// switch: also while neither hears the other, and while both admit.
func TestMeterBoundOfReplacement(t *testing.T) {
	random := seeded(t)
	const limit, perRequest, staleness = 60_000, 300, 100 * time.Millisecond
	const change, serves, heard, ends = 5 * time.Second, 6500 * time.Millisecond, 7 * time.Second, 20 * time.Second
	var list []*Client
	for i, most := range []int{1, 2, 4, 9, 40, 40, 40, 40} {
		list = append(list, &Client{Name: fmt.Sprint("c", i), TokensPerMinute: int64(limit * (i % 2)), InFlight: most})
	}
	list = append(list, &Client{Name: "metered", TokensPerMinute: limit})
	overTokens, overRequests, both := 0., 0, 0
	for range 30 {
		now := time.Hour
		old, next := adopted(t, list...), adopted(t, list...)
		type request struct {
			m      *Meter
			client int
			r      *Reservation
			end    time.Duration
		}
		var running []request
		level, inFlight, ended := make([]float64, len(list)), make([]int, len(list)), make([][]time.Duration, len(list))
		idle := make([]bool, len(list)) // until the switch
		for c := range idle {
			idle[c] = random.IntN(2) == 0
		}
		type report struct {
			at    time.Duration
			uses  []Held
			takes func([]Held, time.Duration)
		}
		var reports []report
		for began := now; now-began < ends; now += meterTick {
			at := now - began
			if at == change {
				next.Predecessor(old.HandOn(nil, now), now)
			}
			if at >= change {
				f := Fleet{Heard: 1, Nodes: 1, Processes: 2, Staleness: staleness, Silent: at < heard}
				old.SetFleet(f)
				next.SetFleet(f)
			}
			if at >= heard-staleness && at%(50*time.Millisecond) == 0 {
				late := now + time.Duration(random.Int64N(int64(50*time.Millisecond)))
				reports = append(reports, report{late, old.HandOn(nil, now), next.Predecessor}, report{late, next.HandBack(nil, now), old.Successor})
			}
			for len(reports) > 0 && reports[0].at <= now {
				reports[0].takes(reports[0].uses, now)
				reports = reports[1:]
			}
			kept := running[:0]
			for _, q := range running {
				if now < q.end {
					kept = append(kept, q)
					continue
				}
				inFlight[q.client]--
				ended[q.client] = append(ended[q.client], now)
				q.m.Release(q.r, Spent{Prompt: -1, Output: -1}, now)
			}
			running = kept
			for c := range list {
				ended[c] = slices.DeleteFunc(ended[c], func(at time.Duration) bool { return now-at > 2*staleness })
				level[c] = max(0, level[c]-float64(list[c].TokensPerMinute)*meterTick.Seconds()/60)
				for range random.IntN(8) {
					m := old
					if at >= serves && random.IntN(2) == 0 {
						m = next
					}
					if at < change && idle[c] {
						continue
					}
					r, why := m.Reserve(list[c], perRequest/2, perRequest/2, now)
					if why != Admitted {
						continue
					}
					if m == next {
						both++
					}
					inFlight[c]++
					if list[c].InFlight > 0 {
						overRequests = max(overRequests, inFlight[c]-list[c].InFlight-len(ended[c]))
					}
					if list[c].TokensPerMinute > 0 {
						level[c] += perRequest
						overTokens = max(overTokens, level[c]-limit)
					}
					running = append(running, request{m, c, &r, now + time.Duration(random.IntN(6000))*time.Millisecond})
				}
			}
		}
	}
	t.Logf("over by %.0f tokens and %d requests that did not just end; the new process admitted %d", overTokens, overRequests, both)
	// Until the two hear each other, each of them lets its own tokens leak at the whole rate.
	if bound := limit*(heard-serves).Minutes() + perRequest; overTokens > bound {
		t.Errorf("%.0f tokens beyond the limit, want at most %.0f", overTokens, bound)
	}
	if overRequests > 1 || both == 0 {
		t.Errorf("%d requests beyond the limit, want at most 1; the new process admitted %d", overRequests, both)
	}
}

// A process that replaces another one counts what that still uses, says so to its peers, and returns it.
func TestMeterOfSuccessor(t *testing.T) {
	c := &Client{Name: "c", TokensPerMinute: 6000, InFlight: 3}
	old, next, peer := adopted(t, c), adopted(t, c), adopted(t, c)
	now := time.Hour
	tell := func(process uint64, from *Meter) { peer.Peer("node", process, from.Own(nil, now), true, now) }
	use := func(what string, m *Meter, inFlight int, tokens int64) {
		t.Helper()
		if s := m.Standing(c, 0, Admitted, now); s.InFlight != inFlight || s.TokensUsed != tokens {
			t.Errorf("%s: %d requests with %d tokens, want %d with %d", what, s.InFlight, s.TokensUsed, inFlight, tokens)
		}
	}
	a, _ := old.Reserve(c, 1000, 500, now)
	b, _ := old.Reserve(c, 1000, 500, now)
	tell(1, old)
	peer.DropPeer("node", true, now) // it left
	use("peer of a node whose process is replaced", peer, 2, 3000)
	next.Predecessor(old.HandOn(nil, now), now)
	tell(2, next)
	use("peer of a new process", peer, 2, 3000)
	use("the new process", next, 2, 3000)
	third, why := next.Reserve(c, 500, 500, now)
	if _, over := next.Reserve(c, 1, 1, now); why != Admitted || over != InFlight {
		t.Errorf("%v, %v", why, over)
	}
	old.Release(&a, Spent{Prompt: 1000, Output: 100}, now) // 400 less: peers know of 3000
	late, _ := old.Reserve(c, 900, 100, now)               // they know nothing of 600 of these
	next.Predecessor(old.HandOn(nil, now), now)
	tell(2, next)
	use("the new process after more", next, 3, 4600)
	use("its peer", peer, 3, 4600)
	for m, r := range map[*Meter][]*Reservation{old: {&b, &late}, next: {&third}} {
		for _, r := range r {
			m.Release(r, Spent{Prompt: -1, Output: -1}, now)
		}
	}
	next.PredecessorEnded(now)
	tell(2, next)
	use("the new process at the end", next, 0, 4600)
	use("its peer at the end", peer, 0, 4600)
	now += 2 * time.Minute
	next.Own(nil, now)
	now += 2 * time.Minute
	if own := next.Own(nil, now); len(own) != 0 || len(next.HandOn(nil, now)) != 0 {
		t.Errorf("still reported: %v", own)
	}

	// Requests of a node that left do not count for ever.
	for _, returned := range []bool{true, false} {
		peer.Peer("node", 3, []Use{{Client: NameKey(c.Name), InFlight: 3}}, true, now)
		peer.DropPeer("node", true, now)
		use("peer of a node that left", peer, 3, 0)
		if returned {
			peer.PeerReturned("node")
		} else {
			now += Succession + time.Second
			peer.Own(nil, now)
		}
		use("afterwards", peer, 0, 0)
	}
}

// What the old process admitted after its last report, peers learn from the new one; and a third process counts what is left of the first.
func TestMeterOfSecondSuccessor(t *testing.T) {
	c := &Client{Name: "c", TokensPerMinute: 6000, InFlight: 9}
	first, second, third, peer := adopted(t, c), adopted(t, c), adopted(t, c), adopted(t, c)
	now := time.Hour
	use := func(what string, m *Meter, inFlight int, tokens int64) {
		t.Helper()
		if s := m.Standing(c, 0, Admitted, now); s.InFlight != inFlight || s.TokensUsed != tokens {
			t.Errorf("%s: %d requests with %d tokens, want %d with %d", what, s.InFlight, s.TokensUsed, inFlight, tokens)
		}
	}
	a, _ := first.Reserve(c, 1000, 500, now)
	peer.Peer("node", 1, first.Own(nil, now), true, now)
	b, _ := first.Reserve(c, 300, 200, now) // it has left gossip
	peer.DropPeer("node", true, now)
	second.Predecessor(first.HandOn(nil, now), now)
	peer.Peer("node", 2, second.Own(nil, now), true, now)
	use("peer of the second process", peer, 2, 2000)
	for _, r := range []*Reservation{&a, &b} {
		first.Release(r, Spent{Prompt: -1, Output: -1}, now)
	}
	second.Predecessor(first.HandOn(nil, now), now)
	second.PredecessorEnded(now)
	peer.Peer("node", 2, second.Own(nil, now), true, now)
	third.Predecessor(second.HandOn(nil, now), now)
	use("the third process", third, 0, 2000)
	peer.Peer("node", 3, third.Own(nil, now), true, now)
	use("its peer", peer, 0, 2000)

	// All of them was heard: no process has anything to report, and the next one must know it all the same.
	first, second, third = adopted(t, c), adopted(t, c), adopted(t, c)
	a, _ = first.Reserve(c, 1000, 500, now)
	first.Own(nil, now)
	first.Release(&a, Spent{Prompt: -1, Output: -1}, now)
	second.Predecessor(first.HandOn(nil, now), now)
	for range 2 {
		if own := second.Own(nil, now); len(own) != 0 {
			t.Errorf("it reports what its peers know: %v", own)
		}
	}
	third.Predecessor(second.HandOn(nil, now), now)
	use("the third process", third, 0, 1500)
	// The second one hears its peers from the third.
	second.Peer("peer", 1, []Use{{NameKey(c.Name), 100, 1}}, true, now)
	third.Peer("peer", 1, []Use{{NameKey(c.Name), 400, 2}}, true, now)
	d, _ := third.Reserve(c, 100, 100, now)
	for range 2 {
		second.Successor(third.HandBack(nil, now), now)
		use("the second process", second, 3, 2100)
	}
	third.Release(&d, Spent{Prompt: -1, Output: -1}, now)
	second.Successor(third.HandBack(nil, now), now)
	use("the second process", second, 2, 2100)
}

func BenchmarkReserve(b *testing.B) {
	var list []*Client
	for i := range MaxClients {
		list = append(list, &Client{Name: fmt.Sprint("c", i), TokensPerMinute: MaxTokensPerMinute, InFlight: 1000})
	}
	m := adopted(b, list...)
	m.SetFleet(Fleet{Heard: 8, Nodes: 8})
	var uses []Use
	for _, c := range list {
		uses = append(uses, Use{NameKey(c.Name), 1000, 5})
	}
	for i := range 7 {
		m.Peer(fmt.Sprint(i), 1, uses, true, time.Hour)
	}
	now := time.Hour
	for _, c := range list { // they are in the list of active clients
		r, _ := m.Reserve(c, 1, 1, now)
		m.Release(&r, Spent{}, now)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now += 10 * time.Microsecond
		i = (i + 7919) % len(list)
		r, why := m.Reserve(list[i], 100, 100, now)
		if why != Admitted {
			b.Fatal(why)
		}
		m.Release(&r, Spent{Prompt: 100, Output: 50}, now)
	}
}
