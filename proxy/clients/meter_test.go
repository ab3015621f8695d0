package clients

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
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
	m.DropPeer("peer", time.Hour)
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
		if n.dead {
			continue
		}
		if f.now%(50*time.Millisecond) == 0 {
			uses := n.Own(nil, f.now)
			for j, to := range f.nodes {
				if j != i && !to.dead && !f.cut(i, j) {
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
// dies, returns, and the fleet is divided; and they get most of what they may use.
func TestMeterBoundOverFleet(t *testing.T) {
	random := seeded(t)
	const nodes, limit, most, perRequest = 8, 60_000, 40, 300
	const staleness = 100 * time.Millisecond
	var list []*Client
	for i := range 10 {
		list = append(list, &Client{Name: fmt.Sprint("c", i), TokensPerMinute: limit, InFlight: most})
	}
	f := &meterFleet{now: time.Hour, delay: staleness, cut: func(int, int) bool { return false }}
	for range nodes {
		f.nodes = append(f.nodes, &meterNode{Meter: adopted(t, list...), process: 1})
	}
	type request struct {
		node, client int
		process      uint64
		r            *Reservation
		end          time.Duration
	}
	var running []request
	level, inFlight := make([]float64, len(list)), make([]int, len(list))
	ended := make([][]time.Duration, len(list))
	overTokens, overRequests, admitted := 0., 0, 0.
	from := f.now
	silentFrom, silentUntil := time.Duration(0), time.Duration(0)
	phase := func(at time.Duration) bool { return f.now-from == at }
	for f.now-from < 5*time.Minute {
		switch {
		case phase(time.Minute):
			f.nodes[3].dead = true
			for _, n := range f.nodes {
				n.DropPeer("3", f.now)
			}
			silentFrom = f.now
		case phase(90 * time.Second):
			f.nodes[3] = &meterNode{Meter: adopted(t, list...), process: 2}
			for i, n := range f.nodes {
				if i != 3 { // streams begin with full reports
					f.nodes[3].Peer(strconv.Itoa(i), n.process, n.Own(nil, f.now), true, f.now)
				}
			}
		case phase(2 * time.Minute):
			f.cut = func(a, b int) bool { return (a < 3) != (b < 3) }
			silentFrom, silentUntil = f.now+time.Second, f.now+3*time.Second
		case phase(3 * time.Minute):
			f.cut = func(int, int) bool { return false }
		}
		divided := f.cut(0, 7)
		for i, n := range f.nodes {
			fleet := Fleet{Heard: nodes, Nodes: nodes, Staleness: staleness, Silent: f.now >= silentFrom && f.now < silentUntil}
			switch {
			case divided && f.now >= silentUntil && i < 3:
				fleet.Heard = 3
			case divided && f.now >= silentUntil:
				fleet.Heard = 5
			case f.nodes[3].dead:
				fleet.Heard = nodes - 1
			}
			n.SetFleet(fleet)
		}
		f.turn(random)
		kept := running[:0]
		for _, q := range running {
			n := f.nodes[q.node]
			if !n.dead && n.process == q.process && f.now < q.end {
				kept = append(kept, q)
				continue
			}
			inFlight[q.client]--
			ended[q.client] = append(ended[q.client], f.now)
			if n.process == q.process && !n.dead {
				n.Release(q.r, Spent{Prompt: -1, Output: -1}, f.now)
			}
		}
		running = kept
		for c := range list {
			ended[c] = slices.DeleteFunc(ended[c], func(at time.Duration) bool { return f.now-at > 2*staleness })
			level[c] = max(0, level[c]-limit*meterTick.Seconds()/60)
			for range random.IntN(4) * 2 {
				i := random.IntN(nodes)
				if n := f.nodes[i]; !n.dead {
					if r, why := n.Reserve(list[c], perRequest/2, perRequest/2, f.now); why == Admitted {
						level[c] += perRequest
						admitted += perRequest
						inFlight[c]++
						running = append(running, request{i, c, n.process, &r, f.now + time.Duration(random.IntN(3000))*time.Millisecond})
					}
				}
			}
			overTokens, overRequests = max(overTokens, level[c]-limit), max(overRequests, inFlight[c]-most-len(ended[c]))
		}
	}
	may := float64(len(list)) * limit * (1 + (f.now - from).Minutes())
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
