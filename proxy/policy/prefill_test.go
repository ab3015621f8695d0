package policy

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// rolesOf makes a backend per letter: p prefill, d decode, P and D the same of pairs, b both.
func rolesOf(letters string) []Backend {
	list := fleetOf(len(letters))
	for i, c := range letters {
		switch c {
		case 'p', 'P':
			list[i].Role = Prefill
		case 'd', 'D':
			list[i].Role = Decode
		}
		list[i].Paired = c == 'P' || c == 'D'
	}
	return list
}

func split(hashes []prefixtree.Hash) *Request {
	q := ask(hashes)
	q.Need = Split
	return q
}

func TestNeedsAndRoles(t *testing.T) {
	for _, tc := range []struct {
		fleet  string
		need   Need
		expect string // letters that may be chosen
		err    error
	}{
		{"bbb", Whole, "b", nil},
		{"pdb", Whole, "db", nil},
		{"pdb", Split, "db", nil},
		{"pdb", PromptOnly, "pdb", nil},
		{"PDb", Whole, "b", nil},
		{"PDb", Split, "Db", nil},
		{"PDb", PromptOnly, "b", nil},
		{"pp", Split, "", ErrNoRole},
		{"DDp", Split, "", ErrNoRole}, // the prefill backend is none of a pair
		{"PD", Whole, "", ErrNoRole},
	} {
		t.Run(fmt.Sprint(tc.fleet, " ", tc.need), func(t *testing.T) {
			r, _ := newRouter(t, Config{}, rolesOf(tc.fleet))
			chosen := map[byte]bool{}
			for i := range 60 {
				q := ask(prompt(uint64(i), uint64(i), 4, 8))
				q.Need = tc.need
				var a Attempt
				if err := r.Pick(q, t0, &a); err != nil {
					if !errors.Is(err, tc.err) {
						t.Fatalf("error %v, want %v", err, tc.err)
					}
					return
				}
				chosen[tc.fleet[a.Decision().Backend]] = true // not ended, so that load spreads
			}
			if tc.err != nil {
				t.Fatalf("no error, want %v", tc.err)
			}
			for i := range tc.expect {
				if !chosen[tc.expect[i]] {
					t.Errorf("no request went to role %c", tc.expect[i])
				}
				delete(chosen, tc.expect[i])
			}
			if len(chosen) > 0 {
				t.Errorf("requests went to other roles: %v", chosen)
			}
		})
	}
}

// A request of another model, without roles, needs none.
func TestPrefillWithoutRoles(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	a := pick(t, r, split(prompt(1, 1, 0, 400)), t0)
	if r.PickPrefill(split(nil), t0, a, new(Attempt)) {
		t.Error("a fleet without roles splits a request")
	}
}

// occupy fills a backend with running requests.
func occupy(t *testing.T, r *Router, b prefixtree.Backend, n int) {
	t.Helper()
	r.SetPeerLoad("busy", []books.PeerLoad{{Backend: b, Active: int64(n)}}, t0)
}

// The decode backend computes a short prompt itself; a long one would delay its running requests.
func TestPrefillPrice(t *testing.T) {
	r, _ := newRouter(t, Config{}, rolesOf("pd"))
	for _, tc := range []struct {
		running, blocks int
		remote          bool
	}{
		{0, 400, false}, // no running request is delayed
		{4, 1, false},   // fetching takes longer
		{20, 400, true},
		{60, 40, true},
	} {
		occupy(t, r, 1, tc.running)
		q := split(prompt(uint64(tc.blocks), uint64(tc.running), 0, tc.blocks))
		d, p := pick(t, r, q, t0), new(Attempt)
		var explained Decision
		if got := r.ExplainPrefill(q, t0, d.Decision(), &explained); got != tc.remote {
			t.Errorf("%+v: explained %t: alone %.3f s, remote %.3f s", tc, got, explained.Alone, explained.Remote)
		}
		if got := r.PickPrefill(q, t0, d, p); got != tc.remote {
			t.Fatalf("%+v: remote %t", tc, got)
		}
		atPrefill, _ := r.Load(0)
		atDecode, active := r.Load(1)
		if (atPrefill > 0) != tc.remote || (atDecode > 0) == tc.remote || active != 1 {
			t.Errorf("%+v: charged %d for prefill, %d for decode with %d active", tc, atPrefill, atDecode, active)
		}
		if tc.remote {
			p.Dispatched(t0)
			p.FirstToken(t0 + 100)
			p.End(unknown(), t0+100)
		}
		d.Dispatched(t0 + 100)
		d.FirstToken(t0 + 120)
		d.End(unknown(), t0+500)
		released(t, r, 2)
	}
}

func released(t *testing.T, r *Router, backends int) {
	t.Helper()
	for b := range backends {
		if tokens, active := r.Load(prefixtree.Backend(b)); tokens != 0 || active != 0 {
			t.Errorf("backend %d is left with %d tokens and %d requests", b, tokens, active)
		}
	}
	if n := r.Stats().DoubleEnds; n != 0 {
		t.Errorf("%d double ends", n)
	}
}

// Both backends hold the prompt afterwards, and the prefill backend that holds a prefix gets it again, by whatever dice, until so many
// prompts have parted behind it that it is popular: then several prefill backends may come to hold it.
func TestPrefillFollowsPrefix(t *testing.T) {
	bubble.SkipInRace(t)
	for seed := range uint64(100) {
		prefillFollowsPrefix(t, seed)
	}
}

const popular = 4 // prompts that parted

func prefillFollowsPrefix(t *testing.T, seed uint64) {
	r, _ := newRouter(t, Config{Seed: seed}, rolesOf("pppd"))
	at := map[prefixtree.Backend]int{}
	for turn := range 1 + popular {
		now := t0 + prefixtree.Time(turn*1000)
		occupy(t, r, 3, 60)
		// The suffix differs, so that the decode backend lacks most of each prompt's cache.
		q := split(prompt(7, uint64(turn+1), 200, 400))
		d, p := pick(t, r, q, now), new(Attempt)
		if !r.PickPrefill(q, now, d, p) {
			t.Fatalf("seed %d: turn %d is not split", seed, turn)
		}
		at[p.Decision().Backend]++
		if turn > 0 && p.Decision().MatchedBlocks < 200 {
			t.Errorf("seed %d: turn %d matches %d blocks", seed, turn, p.Decision().MatchedBlocks)
		}
		p.Dispatched(now)
		p.FirstToken(now + 10)
		p.End(unknown(), now+10)
		d.Dispatched(now + 10)
		d.FirstToken(now + 20)
		d.End(unknown(), now+30)
		if got := r.tree.(*prefixtree.Tree); !holds(got, q, 3, now+40) || !holds(got, q, p.Decision().Backend, now+40) {
			t.Errorf("seed %d: turn %d: a placement is missing", seed, turn)
		}
	}
	if len(at) != 1 {
		t.Errorf("seed %d: prefill backends %v, want one", seed, at)
	}
}

func holds(tree *prefixtree.Tree, q *Request, b prefixtree.Backend, now prefixtree.Time) bool {
	var m prefixtree.Matches
	tree.Match(&m, q.Hashes, now)
	for _, h := range m.Holders() {
		if h.Backend == b && int(h.Blocks) == len(q.Hashes) {
			return true
		}
	}
	return false
}

// A pair's decode engine cannot compute a prompt, at any price.
func TestPairsAlwaysSplit(t *testing.T) {
	r, _ := newRouter(t, Config{}, rolesOf("PpD"))
	for i := range 20 {
		q := split(prompt(uint64(i), uint64(i), 0, 1))
		d, p := pick(t, r, q, t0), new(Attempt)
		if !r.PickPrefill(q, t0, d, p) || p.Decision().Backend != 0 {
			t.Fatalf("request %d has no prefill backend of its pair", i)
		}
		p.Withdraw(t0)
		d.Withdraw(t0)
	}
	released(t, r, 3)
}

// Withdrawn and failed attempts leave neither charge nor placement; what was fetched fails only with
// the transfer, which is no evidence against the backend.
func TestPrefillFails(t *testing.T) {
	r, tree := newRouter(t, Config{}, rolesOf("ppd"))
	occupy(t, r, 2, 60)
	for i := range 5 {
		q := split(prompt(uint64(i), uint64(i), 0, 400))
		d, p := pick(t, r, q, t0), new(Attempt)
		if !r.PickPrefill(q, t0, d, p) {
			t.Fatal("not split")
		}
		p.Dispatched(t0)
		p.FirstToken(t0 + 1)
		p.End(unknown(), t0+1)
		d.Dispatched(t0 + 1)
		d.End(failed(books.Transfer), t0+2)
		if _, avoided := r.Avoided(2, t0+3); avoided {
			t.Fatal("a failed transfer ejects the decode backend")
		}
		if holds(tree, q, 2, t0+3) {
			t.Error("the decode backend counts as a holder of what it could not fetch")
		}
	}
	released(t, r, 3)
}

func TestTransfersLearnALine(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var tr transfers
	if got, want := tr.seconds(4000), transferStart+4000*transferToken; math.Abs(got-want) > 1e-9 {
		t.Errorf("the prior gives %v s, want %v", got, want)
	}
	truth := func(n float64) float64 { return 0.2 + 50e-6*n }
	for range 300 {
		n := float64(rnd.IntN(20_000))
		tr.learn(n, truth(n)*(0.98+0.04*rnd.Float64()))
	}
	for _, n := range []float64{100, 2000, 20_000} {
		if got := tr.seconds(n); math.Abs(got/truth(n)-1) > 0.15 {
			t.Errorf("%v tokens: %.3f s, want %.3f", n, got, truth(n))
		}
	}
	for range 300 { // equal lengths show no slope, and a start below 0 is none
		tr.learn(1000, 0)
	}
	if got := tr.seconds(0); got < 0 || math.IsNaN(got) {
		t.Errorf("no tokens take %v s", got)
	}
}

// Memory decides among decode backends.
func TestDecodeNeedsMemory(t *testing.T) {
	list := rolesOf("dd")
	list[0].KVTokens, list[1].KVTokens = 100_000, 100_000
	r, _ := newRouter(t, Config{}, list)
	r.SetTelemetry(0, books.Telemetry{KVUsage: 0.99})
	for i := range 20 {
		a := pick(t, r, split(prompt(uint64(i), uint64(i), 0, 100)), t0)
		if a.Decision().Backend != 1 {
			t.Fatalf("request %d goes to the backend without memory", i)
		}
		a.Withdraw(t0)
	}
	r.SetTelemetry(1, books.Telemetry{KVUsage: 0.99})
	pick(t, r, split(prompt(99, 99, 0, 100)), t0).Withdraw(t0)
	released(t, r, 2)
}
