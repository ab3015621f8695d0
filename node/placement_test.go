package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/node/backends"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

func stateWith(version uint64, generation uint32, names ...string) *raftstore.State {
	s := &raftstore.State{Version: version}
	for _, name := range names {
		s.Backends = append(s.Backends, raftstore.Backend{
			Generation: generation, Name: name, URL: "http://" + name + ":1", Weight: 1, Source: raftstore.Static, Version: version,
		})
	}
	return s
}

func sinceOf(n *Node, e *backends.Engine) prefixtree.Time {
	b, _ := n.router.View().Backend(e.ID)
	return b.Since
}

func unstarted(t *testing.T, names ...string) *Node {
	t.Helper()
	var urls []string
	for _, name := range names {
		urls = append(urls, "http://"+name+":1")
	}
	cfg := fleetConfig("one", nil, urls...)
	for i, name := range names {
		cfg.Backends[i].Name = name
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.began = time.Now()
	t.Cleanup(func() { stopNode(t, n) })
	return n
}

func (n *Node) place(t *testing.T, a *policy.Attempt, blocks []prefixtree.Hash) (dispatch func()) {
	t.Helper()
	if err := n.router.Pick(&policy.Request{Hashes: blocks, PromptBytes: 512 * len(blocks)}, now(), a); err != nil {
		t.Fatal(err)
	}
	return func() { a.Dispatched(now()) }
}

func (n *Node) serve(t *testing.T, blocks []prefixtree.Hash, at prefixtree.Time) string {
	t.Helper()
	var a policy.Attempt
	if err := n.router.Pick(&policy.Request{Hashes: blocks, PromptBytes: 512 * len(blocks)}, at, &a); err != nil {
		t.Fatal(err)
	}
	a.Dispatched(at)
	a.FirstToken(at + 100)
	a.End(policy.Outcome{PromptTokens: len(blocks) * 128, OutputTokens: 5}, at+200)
	return a.Decision().Name
}

func tell(t *testing.T, from, to *Node) (records, news int) {
	t.Helper()
	for {
		payload, sent := from.knowledge.Drain(nil, 64<<10)
		if sent == 0 {
			break
		}
		applied, err := to.knowledge.Apply("peer", payload, 0)
		if err != nil || applied.Records != sent {
			t.Fatalf("%d of %d records: %v", applied.Records, sent, err)
		}
		records, news = records+sent, news+applied.News
	}
	to.knowledge.PeerLoad("peer", from.knowledge.Loads(nil), true)
	to.knowledge.PeerState("peer", from.knowledge.State(nil))
	return records, news
}

func chain(seed, blocks int) []prefixtree.Hash {
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	hashes := make([]prefixtree.Hash, blocks)
	for i := range hashes {
		hashes[i] = prefixtree.Hash(rnd.Uint64())
	}
	return hashes
}

// TestPlacementsOutlastTheAgreement: adopting the fleet's list loses no facts, no unsent news and
// no running requests.
func TestPlacementsOutlastTheAgreement(t *testing.T) {
	for _, generation := range []uint32{1, 1 + 2} {
		t.Run(fmt.Sprint("generation ", generation), func(t *testing.T) {
			n := unstarted(t, "a", "b", "c", "d")
			peer := unstarted(t, "c", "d", "a", "b")
			for id := range 4 {
				peer.tree.SetGeneration(prefixtree.Backend(id), generation, now())
			}
			receive := func() {
				for {
					payload, records := n.knowledge.Drain(nil, 64<<10)
					if records == 0 {
						return
					}
					if _, err := peer.knowledge.Apply("one", payload, 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			var attempts [24]policy.Attempt
			var later []func()
			for i := range attempts {
				dispatch := n.place(t, &attempts[i], chain(i, 40))
				switch {
				case i < 8:
					dispatch()
				case i < 16:
					if i == 8 {
						receive()
					}
					dispatch()
				default:
					later = append(later, dispatch)
				}
			}
			for i := range 4 {
				peer.serve(t, chain(100+i, 40), now())
			}
			payload, _ := peer.knowledge.Drain(nil, 64<<10)
			if _, err := n.knowledge.Apply("peer", payload, 0); err != nil {
				t.Fatal(err)
			}

			if err := n.backends.Adopt(stateWith(7, generation, "d", "a", "c", "b")); err != nil {
				t.Fatal(err)
			}
			for _, dispatch := range later {
				dispatch()
			}
			receive()
			count, xor := facts(n)
			atPeer, xorAtPeer := facts(peer)
			if least := uint64(len(attempts) + 4); count < least || atPeer != count || xorAtPeer != xor {
				t.Errorf("%d facts here, %d at the peer, the same %v; want the same, %d at least", count, atPeer, xorAtPeer == xor, least)
			}
			if st := n.knowledge.shared.Stats().Outbox; st.Unnamed > 0 || st.Pending > 0 {
				t.Errorf("%+v", st)
			}
			active := int64(0)
			for _, b := range n.BackendList().Backends {
				active += b.Active
			}
			if active != int64(len(attempts)) {
				t.Errorf("%d requests on their way, %d are counted", len(attempts), active)
			}
			for i := range attempts {
				d := attempts[i].Decision()
				if target, ok := d.Handle.(*proxy.Target); !ok || target.Name != d.Name {
					t.Errorf("the decision for %s leads to %+v", d.Name, target)
				}
				attempts[i].End(policy.Outcome{PromptTokens: 40 * 128, OutputTokens: 1}, now())
			}
		})
	}
}

// TestSinceIsNotToCome: a start time in the future begins slow start now, once.
func TestSinceIsNotToCome(t *testing.T) {
	n := unstarted(t)
	s := stateWith(1, 1, "a")
	s.Backends[0].Source, s.Backends[0].Since = raftstore.Admin, time.Now().Add(time.Hour).UnixMilli()
	if err := n.backends.Adopt(s); err != nil {
		t.Fatal(err)
	}
	first := sinceOf(n, n.backends.Roster().List[0])
	if first == 0 || first > now() {
		t.Errorf("it returned at %d, it is %d", first, now())
	}
	eventually(t, "the clock goes on", func() bool { return now() > first })
	next := *s
	next.Version = 2
	if err := n.backends.Adopt(&next); err != nil {
		t.Fatal(err)
	}
	if again := sinceOf(n, n.backends.Roster().List[0]); again != first {
		t.Errorf("it returned at %d, and by the next state at %d", first, again)
	}
}

// TestNewsBeforeTheBackend: a peer's news about an unlisted backend counts once it is listed.
func TestNewsBeforeTheBackend(t *testing.T) {
	n := unstarted(t)
	peer := unstarted(t, "a")
	peer.tree.SetGeneration(0, 1, now())
	var last string
	const prompts = 120 // of 100 ms: as evidence of a faster rate they must exceed the prior's 10 s
	for i := range prompts {
		last = peer.serve(t, chain(i, 40), now()-prefixtree.Time(200*(prompts-i)))
	}
	want, news := tell(t, peer, n)
	if want < prompts || news != want {
		t.Fatalf("%d records, %d of them are news", want, news)
	}
	digest := func() uint64 {
		count, _ := facts(n)
		return count
	}
	for version, names := range [][]string{{"b"}, {"b", last}} {
		if count := digest(); count != 0 {
			t.Errorf("%d facts of a backend that is in no list would be sent on", count)
		}
		if err := n.backends.Adopt(stateWith(uint64(version+1), 1, names...)); err != nil {
			t.Fatal(err)
		}
	}
	if got := digest(); int(got) != want {
		t.Errorf("%d of %d facts", got, want)
	}
	const prior = 10_000 // tokens/s, for an unknown engine
	if rate := n.router.Rate(n.backends.Roster().Named(last).ID); rate < 2*prior {
		t.Errorf("%v tokens/s, where the other has measured %v", rate, peer.router.Rate(0))
	}
}

// TestNewsAheadOfTheState: peers' news about a new generation or URL survives its later agreement.
func TestNewsAheadOfTheState(t *testing.T) {
	elsewhere := stateWith(2, 1+1, "a")
	elsewhere.Backends[0].URL = "http://elsewhere:1"
	for _, c := range []struct {
		next *raftstore.State
		want int
	}{{stateWith(2, 1+1, "a"), 40}, {elsewhere, 40}, {stateWith(2, 1+1, "b"), 0}} {
		n := unstarted(t)
		if err := n.backends.Adopt(stateWith(1, 1, "a")); err != nil {
			t.Fatal(err)
		}
		id := n.backends.Roster().Named("a").ID
		n.tree.Record(id, chain(1, 40), now()-1000, nil)
		peer := unstarted(t, "a")
		peer.tree.SetGeneration(0, 1+1, now())
		peer.serve(t, chain(2, 40), now())
		if _, news := tell(t, peer, n); news == 0 {
			t.Fatal("nothing was told")
		}
		if err := n.backends.Adopt(c.next); err != nil {
			t.Fatal(err)
		}
		held := func(hashes []prefixtree.Hash) (blocks int) {
			var m prefixtree.Matches
			n.tree.Match(&m, hashes, now())
			for _, h := range m.Holders() {
				if h.Backend == n.backends.Roster().List[0].ID {
					blocks = int(h.Blocks)
				}
			}
			return blocks
		}
		if before, since := held(chain(1, 40)), held(chain(2, 40)); before != 0 || since != c.want {
			t.Errorf("%+v: %d blocks of before, %d of 40 since, want %d", c.next.Backends, before, since, c.want)
		}
	}
}

func TestLoadWaitsForBackends(t *testing.T) {
	n := unstarted(t, "a")
	k, key := n.knowledge, prefixtree.BackendKey
	load := func(name string, tokens uint32) []gossip.Load {
		return []gossip.Load{{Backend: key(name), PrefillTokens: tokens, Active: 1}}
	}
	k.PeerLoad("x", load("b", 100), true)
	k.PeerLoad("x", load("b", 700), false)
	k.PeerLoad("x", load("c", 50), false)
	k.PeerLoad("y", load("b", 30), true)
	k.PeerLoad("y", load("c", 0)[:0], true)
	k.PeerLoad("z", load("b", 9), true)
	k.DropPeer("z", false)
	k.PeerLoad("v", load("b", 4), true)
	k.PeerLoad("v", []gossip.Load{{Backend: key("b")}}, false)
	if err := n.backends.Adopt(stateWith(1, 1, "a", "b")); err != nil {
		t.Fatal(err)
	}
	of := func(name string) string {
		tokens, active := n.router.PeerLoad(n.backends.Roster().Named(name).ID)
		return fmt.Sprint(tokens, " ", active)
	}
	if got := of("b"); got != "700 1" {
		t.Errorf("load of others %s", got)
	}
	k.PeerLoad("x", load("b", 0)[:0], true)
	if err := n.backends.Adopt(stateWith(2, 1, "a", "b", "c")); err != nil {
		t.Fatal(err)
	}
	if b, c := of("b"), of("c"); b != "0 0" || c != "0 0" {
		t.Errorf("load of others %s, %s", b, c)
	}
}

func TestAnotherEngineOfThatName(t *testing.T) {
	n := unstarted(t, "a", "b")
	own := n.backends.Roster().List
	a, b := own[0], own[1]
	if a.Name != "a" || b.Name != "b" {
		t.Fatalf("%s, %s", a.Name, b.Name)
	}
	n.tree.Record(a.ID, chain(1, 40), now(), nil)
	n.tree.Record(b.ID, chain(2, 40), now(), nil)
	s := stateWith(1, 1+3, "a", "b")
	s.Backends[0].URL = "http://elsewhere:1"
	if err := n.backends.Adopt(s); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, 1} {
		var m prefixtree.Matches
		n.tree.Match(&m, chain(i+1, 40), now())
		if got := len(m.Holders()); got != want {
			t.Errorf("%s: %d believed holders, want %d", own[i].Name, got, want)
		}
	}
	peer := unstarted(t, "a")
	peer.tree.SetGeneration(0, 1+3, now())
	for {
		payload, records := n.knowledge.Drain(nil, 64<<10)
		if records == 0 {
			break
		}
		if _, err := peer.knowledge.Apply("one", payload, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{0, 1} {
		var m prefixtree.Matches
		peer.tree.Match(&m, chain(i+1, 40), now())
		if got := len(m.Holders()); got != want {
			t.Errorf("%s: the peer believes in %d holders, want %d", own[i].Name, got, want)
		}
	}
}

// TestAnotherEngineHasItsCapacity: although the facts about the own list's engine are forgotten.
func TestAnotherEngineHasItsCapacity(t *testing.T) {
	n := unstarted(t, "a")
	s := stateWith(1, 1, "a")
	s.Backends[0].URL, s.Backends[0].KVTokens = "http://elsewhere:1", 20_000
	own := n.backends.Roster().Named("a")
	own.KVTokens = 20_000
	if err := n.backends.Adopt(s); err != nil {
		t.Fatal(err)
	}
	before := n.tree.Horizon(own.ID)
	for i := range 100 {
		n.tree.Record(own.ID, chain(i, 100), now()+prefixtree.Time(i*10), nil)
	}
	if after := n.tree.Horizon(own.ID); after >= before {
		t.Errorf("10,000 blocks in a cache of 20,000 tokens leave the horizon at %v", after)
	}
}

func TestReleaseForgetsAnEngine(t *testing.T) {
	n := unstarted(t, "a")
	id := n.backends.Roster().Named("a").ID
	var a policy.Attempt
	n.place(t, &a, chain(1, 40))()
	n.knowledge.PeerLoad("peer", []gossip.Load{{Backend: prefixtree.BackendKey("a"), PrefillTokens: 9, Active: 1}}, true)
	if err := n.backends.Adopt(stateWith(1, 1, "b")); err != nil {
		t.Fatal(err)
	}
	if n.release(id) || n.tree.Stats().Facts == 0 || n.knowledge.shared.Stats().Outbox.Pending == 0 {
		t.Fatalf("released while a request runs: %+v, %+v", n.tree.Stats(), n.knowledge.shared.Stats().Outbox)
	}
	a.End(policy.Outcome{PromptTokens: 40 * 128, OutputTokens: 1}, now())
	if !n.release(id) {
		t.Fatal("not released")
	}
	var m prefixtree.Matches
	n.tree.Match(&m, chain(1, 40), now())
	if st := n.knowledge.shared.Stats().Outbox; len(m.Holders()) > 0 || st.Pending > 0 {
		t.Errorf("%d holders, %+v", len(m.Holders()), st)
	}
	if err := n.backends.Adopt(stateWith(2, 1+1, "a", "b")); err != nil {
		t.Fatal(err)
	}
	if tokens, active := n.router.PeerLoad(id); tokens != 0 || active != 0 {
		t.Errorf("%d tokens, %d requests of others", tokens, active)
	}
}

// TestPlacementsWhileTheFleetIsFounded: three nodes with different orders of engines end with the
// same facts.
func TestPlacementsWhileTheFleetIsFounded(t *testing.T) {
	t.Parallel()
	var urls []string
	for range 4 {
		urls = append(urls, newFakeEngine(t, "m").URL)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var senders sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	send := func(n *Node) {
		for i := 0; ctx.Err() == nil; i++ {
			// The prompts have no common prefix, so no fact is corrected for a missing block.
			text := strings.Repeat(fmt.Sprintf("%s %d: ", n.Name(), i), 2000)
			resp, err := client.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", text)))
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", n.Name(), resp.Status)
				return
			}
		}
	}
	var nodes []*Node
	founders := founderAddrs(t, 3)
	for i, name := range []string{"one", "two", "three"} {
		cfg := founding(t, name, founders, i, slices.Concat(urls[i:], urls[:i])...)
		cfg.WarmDeadline = 2 * time.Second
		n := startNode(t, cfg)
		nodes = append(nodes, n)
		senders.Go(func() { send(n) })
	}
	awaitAgreement(t, nodes...)
	cancel()
	senders.Wait()
	awaitFleet(t, nodes...)
	var digests [3][2]uint64
	eventually(t, "all know the same", func() bool {
		for i, n := range nodes {
			count, xor := facts(n)
			digests[i] = [2]uint64{count, xor}
		}
		return digests[0] == digests[1] && digests[1] == digests[2]
	})
	var placed, unnamed uint64
	for _, n := range nodes {
		placed += n.router.Stats().Picks
		unnamed += n.knowledge.shared.Stats().Outbox.Unnamed
	}
	if placed == 0 || digests[0][0] < placed || unnamed > 0 {
		t.Errorf("%d placements, %d facts, %d records were never told", placed, digests[0][0], unnamed)
	}
}
