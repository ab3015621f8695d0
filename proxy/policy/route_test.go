package policy

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/rules"
)

// labelled makes a backend per list of labels.
func labelled(lists ...[]string) []Backend {
	list := fleetOf(len(lists))
	for i := range list {
		list[i].Labels = lists[i]
	}
	return list
}

func fromSession(name string) *Request {
	return &Request{Session: []byte(name), PromptBytes: 4096}
}

func TestPoolsOfRules(t *testing.T) {
	list := labelled([]string{"version=1", "zone=a"}, []string{"version=2", "zone=a"}, []string{"version=2", "zone=b"}, nil)
	list[2].Models = []string{"m"}
	routing := []rules.Rule{
		{Name: "new", PathPrefix: "/new", Pool: "version=2"},
		{PathPrefix: "/both", Pool: "version=2,zone=b"},
		{PathPrefix: "/none", Pool: "version=9"},
		{PathPrefix: "/else", Pool: "version=9", Fallback: "version=1"},
		{PathPrefix: "/any", Pool: "version=9", Fallback: rules.AnyBackend},
	}
	for _, strategy := range Strategies() {
		r, _ := newRouter(t, Config{Strategy: strategy}, list, routing...)
		for _, tc := range []struct {
			path, model string
			want        string // the backends' numbers
			rule        string
			fallback    bool
			err         error
		}{
			{"/", "", "0123", "", false, nil},
			{"/new", "", "12", "new", false, nil},
			{"/new", "m", "12", "new", false, nil},
			{"/new", "other", "1", "new", false, nil},
			{"/both", "m", "2", "#1", false, nil},
			{"/both", "other", "", "", false, ErrNoBackend},
			{"/none", "", "", "", false, ErrNoBackend},
			{"/else", "", "0", "#3", true, nil},
			{"/any", "m", "0123", "#4", true, nil},
		} {
			got := map[prefixtree.Backend]bool{}
			var running []*Attempt // so that all backends are used
			for i := range 100 {
				q := ask(prompt(uint64(i), uint64(i), 4, 8))
				q.Path, q.Model, q.Session = []byte(tc.path), []byte(tc.model), fmt.Append(nil, i)
				a := new(Attempt)
				if err := r.Pick(q, t0, a); !errors.Is(err, tc.err) {
					t.Fatalf("%s: %s %q: %v, want %v", strategy, tc.path, tc.model, err, tc.err)
				} else if err != nil {
					break
				}
				d := a.Decision()
				if got[d.Backend] = true; d.Rule != tc.rule || d.Fallback != tc.fallback {
					t.Fatalf("%s: %s: rule %q, fallback %t, want %q, %t", strategy, tc.path, d.Rule, d.Fallback, tc.rule, tc.fallback)
				}
				running = append(running, a)
			}
			for _, a := range running {
				a.End(unknown(), t0)
			}
			for _, c := range tc.want {
				if !got[prefixtree.Backend(c-'0')] {
					t.Errorf("%s: %s %q: %c got nothing of 100 requests", strategy, tc.path, tc.model, c)
				}
				delete(got, prefixtree.Backend(c-'0'))
			}
			if len(got) > 0 {
				t.Errorf("%s: %s %q: %v got requests", strategy, tc.path, tc.model, got)
			}
		}
	}
}

// The fallback serves while no backend of the pool is eligible, and no longer.
func TestFallback(t *testing.T) {
	list := labelled([]string{"tier=a"}, []string{"tier=a"}, []string{"tier=b"})
	rule := rules.Rule{Name: "r", Pool: "tier=a", Fallback: "tier=b"}
	r, _ := newRouter(t, Config{Strategy: RoundRobin, SlowStart: -1}, list, rule)
	to := func(q *Request, now prefixtree.Time) string { return serve(t, r, q, now).Name }
	if b := to(&Request{}, t0); b == "engine-2" {
		t.Fatal("the fallback serves beside the pool")
	}
	if b := to(&Request{Exclude: []prefixtree.Backend{0, 1}}, t0); b != "engine-2" {
		t.Errorf("a request that the pool failed goes to %s", b)
	}
	for now := range prefixtree.Time(8) { // refused connections eject the pool
		a := pick(t, r, &Request{}, t0+now)
		if a.Decision().Fallback {
			a.End(unknown(), t0+now)
			continue
		}
		a.End(failed(books.Connect), t0+now)
	}
	now := t0 + 8
	if b := to(&Request{}, now); b != "engine-2" {
		t.Errorf("with the pool ejected, %s serves", b)
	}
	pick(t, r, &Request{}, now).End(failed(books.Connect), now)
	if d := serve(t, r, &Request{}, now); d.Fallback || !d.LastResort {
		t.Errorf("with everything ejected, %s serves, last resort %t", d.Name, d.LastResort)
	}
	if now += 2000; to(&Request{}, now) == "engine-2" {
		t.Error("the pool does not get its trial")
	}
	for i := range 2 {
		list[i].State = Draining
	}
	setView(t, r, list, rule)
	if b := to(&Request{}, now); b != "engine-2" {
		t.Errorf("with the pool drained, %s serves", b)
	}
	list[2].State = Draining
	setView(t, r, list, rule)
	if err := r.Pick(&Request{}, now, new(Attempt)); !errors.Is(err, ErrNoBackend) {
		t.Errorf("with everything drained: %v", err)
	}
}

// A share takes the same clients at all nodes and at all times, and a larger one keeps those of a smaller one.
func TestShares(t *testing.T) {
	const clients = 10_000
	list := labelled([]string{"version=2"}, []string{"version=3"}, []string{"version=1"})
	drawn := func(r *Router, q func(i int) *Request) (by [3][clients]bool) {
		for i := range clients {
			by[serve(t, r, q(i), t0).Backend][i] = true
		}
		return by
	}
	count := func(set *[clients]bool) (n int) {
		for _, in := range set {
			if in {
				n++
			}
		}
		return n
	}
	shared := func(share float64) []rules.Rule {
		return []rules.Rule{
			{Name: "canary", Share: share, Pool: "version=2"}, {Name: "another", Share: 0.05, Pool: "version=3"}, {Pool: "version=1"},
		}
	}
	session := func(i int) *Request { return fromSession(fmt.Sprint("client-", i)) }
	a, _ := newRouter(t, Config{Strategy: RoundRobin, Seed: 1}, list, shared(0.05)...)
	b, _ := newRouter(t, Config{Strategy: RoundRobin, Seed: 2}, list, shared(0.05)...)
	first := drawn(a, session)
	if drawn(a, session) != first || drawn(b, session) != first {
		t.Error("clients change sides")
	}
	// The draw of these 10,000 clients is fixed; a fair one exceeds 4 standard deviations once in 15,000 times.
	for i, share := range []float64{0.05, 0.05 * 0.95} {
		if n, sd := float64(count(&first[i])), math.Sqrt(clients*share*(1-share)); math.Abs(n-clients*share) > 4*sd {
			t.Errorf("share %d has %v of %d clients, want %v", i, n, clients, clients*share)
		}
	}
	setView(t, a, list, shared(0.20)...)
	more := drawn(a, session)
	for i, in := range first[0] {
		if in && !more[0][i] {
			t.Fatalf("client %d leaves a share that has grown", i)
		}
	}
	if n := count(&more[0]); n < 1800 || n > 2200 {
		t.Errorf("20 %% has %d of %d", n, clients)
	}
	byClient := drawn(b, func(i int) *Request { return &Request{Client: fmt.Append(nil, "client-", i)} })
	if byClient != first {
		t.Error("a client without sessions is drawn otherwise than a session of its name")
	}
	if none := drawn(b, func(int) *Request { return &Request{} }); count(&none[2]) != clients {
		t.Error("requests without session, client and address are in a share")
	}
}

func TestSessionsOfRules(t *testing.T) {
	routing := []rules.Rule{
		{PathPrefix: "/h", Session: "header:X-Chat"}, {PathPrefix: "/m", Session: "body:chat"}, {PathPrefix: "/c", Session: "client"},
	}
	r, _ := newRouter(t, Config{Strategy: Session}, fleetOf(8), routing...)
	if got := r.SessionMembers(); len(got) != 1 || got[0] != "chat" {
		t.Errorf("members are %v", got)
	}
	for path, want := range map[string]string{"/h": "by header", "/m": "by chat", "/c": "the client", "/": "its own"} {
		q := fromSession("its own")
		q.Path, q.Client = []byte(path), []byte("the client")
		q.Header = func(name string) []byte { return []byte(map[string]string{"X-Chat": " by header "}[name]) }
		q.Member = func(name string) []byte { return []byte("by " + name) }
		r.Follow(q)
		if string(q.Session) != want {
			t.Errorf("%s: the session is %q, want %q", path, q.Session, want)
		}
	}
}

// A request keeps to the rule that it began with, also when that is gone.
func TestRulesChangeMeanwhile(t *testing.T) {
	list := labelled([]string{"version=1"}, []string{"version=2"})
	list[0].Models, list[1].Models = []string{"one"}, []string{"one", "two"}
	r, _ := newRouter(t, Config{}, list, rules.Rule{Name: "r", Model: "alias", To: "two", Pool: "version=2", Strategy: Random})
	q := &Request{Model: []byte("alias"), PromptBytes: 100}
	r.Follow(q)
	if string(q.Model) != "two" || string(q.Asked) != "alias" {
		t.Fatalf("asked for %q, engines are asked for %q", q.Asked, q.Model)
	}
	for _, model := range []string{"two", "one", ""} {
		q.Model = []byte(model)
		setView(t, r, list)
		before := len(r.table.Load().pools)
		for range 20 {
			if d := serve(t, r, q, t0); d.Name != "engine-1" || d.Rule != "r" || d.Strategy != Random {
				t.Fatalf("model %q goes to %s by rule %q", model, d.Name, d.Rule)
			}
		}
		if len(r.table.Load().pools) != before {
			t.Error("the view has grown")
		}
	}
	q.Model = []byte("three")
	if err := r.Pick(q, t0, new(Attempt)); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("an unknown model: %v", err)
	}
}

// Requests stay in their zone unless its engines are busy for longer than the way to the next takes.
func TestZones(t *testing.T) {
	list := labelled([]string{"zone=a"}, []string{"zone=b"}, nil)
	const far = 50 * time.Millisecond
	used := func(cfg Config, list []Backend, load int) (by [3]int, zones [3]float64) {
		r, _ := newRouter(t, cfg, list)
		now := t0
		for b := range list { // learn 10,000 tokens/s
			for range 50 {
				a := pick(t, r, &Request{PromptBytes: 40_000, Exclude: without(list, b)}, now)
				a.Dispatched(now)
				now += 1000
				a.FirstToken(now)
				a.End(Outcome{PromptTokens: 10_000, CachedTokens: 0, OutputTokens: 1}, now)
			}
		}
		now += 3_600_000 // the pool is idle again
		for i := range 300 {
			q := ask(prompt(uint64(i), uint64(i), 0, 2+i%200)) // up to 2.5 s
			if i < load {
				q = &Request{PromptBytes: 4000} // 1,000 tokens: 0.1 s
			}
			a := pick(t, r, q, now)
			d := a.Decision()
			by[d.Backend]++
			for _, c := range d.Candidates {
				zones[c.Backend] = c.Zone
			}
			a.Dispatched(now)
			if i >= load {
				a.FirstToken(now)
				a.End(unknown(), now)
			}
			now += 5
		}
		return by, zones
	}
	by, zones := used(Config{Zone: "a", ZoneCost: far}, list, 0)
	if by[1] > 0 || by[0] == 0 || by[2] == 0 {
		t.Errorf("idle: %v", by)
	}
	if zones != [3]float64{0, far.Seconds(), 0} {
		t.Errorf("the zones cost %v", zones)
	}
	if by, _ := used(Config{Zone: "a", ZoneCost: far}, list[:2], 40); by[1] < 10 || by[0] < 10 {
		t.Errorf("under load: %v", by)
	}
	for _, cfg := range []Config{{ZoneCost: far}, {Zone: "a"}} {
		if by, zones := used(cfg, list, 0); zones != [3]float64{} || by[1] == 0 {
			t.Errorf("%+v: %v, which cost %v", cfg, by, zones)
		}
	}
}

func without(list []Backend, keep int) (others []prefixtree.Backend) {
	for i := range list {
		if i != keep {
			others = append(others, list[i].ID)
		}
	}
	return others
}

// The prefill of a pool's request stays in the pool, and near the backend that decodes.
func TestPrefillStaysInThePool(t *testing.T) {
	list := rolesOf("PPDD")
	for i, labels := range [][]string{{"pool=a", "zone=x"}, {"pool=b", "zone=y"}, {"pool=a", "zone=x"}, {"pool=b", "zone=y"}} {
		list[i].Labels = labels
	}
	for i := range 40 {
		r, _ := newRouter(t, Config{Zone: "x", ZoneCost: time.Second, Seed: uint64(i)}, list, rules.Rule{PathPrefix: "/b", Pool: "pool=b"})
		q := split(prompt(1, uint64(i), 0, 40))
		for _, tc := range []struct{ path, decode, prefill string }{{"/b", "engine-3", "engine-1"}, {"/", "engine-2", "engine-0"}} {
			q.Path = []byte(tc.path)
			var a, p Attempt
			if err := r.Pick(q, t0, &a); err != nil {
				t.Fatal(err)
			}
			if !r.PickPrefill(q, t0, &a, &p) || a.Decision().Name != tc.decode || p.Decision().Name != tc.prefill {
				t.Errorf("%s: decode at %s, prefill at %s", tc.path, a.Decision().Name, p.Decision().Name)
			}
			p.End(unknown(), t0)
			a.End(unknown(), t0)
		}
	}
}

func TestRulesDoNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	list := labelled([]string{"version=1"}, []string{"version=2"})
	r, _ := newRouter(t, Config{}, list,
		rules.Rule{Name: "a", Model: "m", Share: 0.5, To: "n", Pool: "version=2", Fallback: "version=1", Session: "header:x"}, rules.Rule{Pool: "version=1"})
	q := ask(prompt(1, 1, 4, 8))
	header := []byte("a session")
	q.Header = func(string) []byte { return header }
	a := new(Attempt)
	step := func() {
		q.Model, q.Session = nil, nil
		r.Follow(q)
		if err := r.Pick(q, t0, a); err != nil {
			t.Fatal(err)
		}
		a.End(unknown(), t0)
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(500, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
