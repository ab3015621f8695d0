package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func startAgreed(t *testing.T, cfg config.Config) *Node {
	t.Helper()
	n := startNode(t, cfg)
	eventually(t, "an agreement", func() bool { return n.backends.Roster().Version > 0 })
	return n
}

func TestWrongInput(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, "m")
	n := startAgreed(t, testConfig(engine.URL))
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer broken.Close()
	good := `{"url":"http://127.0.0.3:8000","name":"good"}`
	before := n.store.Load().State()
	for what, tc := range map[string]struct {
		method, path, body string
		status             int
		place, reason      string
	}{
		"no JSON":             {"POST", "/backends?force", "{\n\"backends\": [}", 400, "body", "is no JSON"},
		"empty":               {"POST", "/backends?force", "", 400, "body", "ends too early"},
		"two values":          {"POST", "/backends?force", `{"backends":[` + good + `]} {}`, 400, "body", "follows"},
		"no backends":         {"POST", "/backends?force", `{"backends":[]}`, 400, "backends", "none"},
		"unknown field":       {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"http://h","wieght":2}]}`, 400, "backends[1].wieght", "unknown field"},
		"a role":              {"POST", "/backends?force", `{"backends":[{"url":"http://h","role":"prefiller"}]}`, 400, "backends[0].body", "write both, prefill or decode"},
		"a port without role": {"POST", "/backends?force", `{"backends":[{"url":"http://h","bootstrap_port":8998}]}`, 400, "backends[0]", "add the role"},
		"a port of no role":   {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"bootstrap_port":8998}`, 400, "", "give it the role prefill or decode"},
		"a zone":              {"POST", "/backends?force", `{"backends":[{"url":"http://h","zone":"a"}]}`, 400, "backends[0].zone", "unknown field"},
		"a new role":          {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"role":"decoder"}`, 400, "", "write both, prefill or decode"},
		"wrong type":          {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"http://h","weight":"2"}]}`, 400, "backends[1].weight", "string"},
		"bad URL":             {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"gpu:8000"}]}`, 400, "backends[1]", "http://host:port"},
		"user in the URL":     {"POST", "/backends?force", `{"backends":[{"url":"http://a:b@h"}]}`, 400, "backends[0]", "user"},
		"bad name":            {"POST", "/backends?force", `{"backends":[{"url":"http://h","name":"a,b"}]}`, 400, "backends[0]", "name"},
		"negative cache":      {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"http://h","kv_tokens":-1}]}`, 400, "backends[1].kv_tokens", "negative"},
		"same name twice":     {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"http://h","name":"good"}]}`, 409, "backends[1].name", "good"},
		"same URL twice":      {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"http://127.0.0.3:8000/v1","name":"other"}]}`, 409, "backends[1].url", "127.0.0.3:8000"},
		"a URL that is there": {"POST", "/backends?force", `{"backends":[` + good + `,{"url":"` + engine.URL + `","name":"again"}]}`, 409, "backends[1].url", n.cfg.Backends[0].Name},
		"nobody answers":      {"POST", "/backends", `{"backends":[{"url":"` + engine.alias() + `","name":"good"},{"url":"http://127.0.0.3:1"}]}`, 422, "backends[1].url", "no engine answers"},
		"it answers 502":      {"POST", "/backends", `{"backends":[{"url":"` + broken.URL + `"}]}`, 422, "backends[0].url", "502"},
		"force what":          {"POST", "/backends?force=perhaps", `{"backends":[` + good + `]}`, 400, "force", "neither"},
		"unknown path":        {"GET", "/backend", "", 404, "GET /backend", "no such path"},
		"unknown method":      {"PUT", "/backends", "{}", 405, "PUT /backends", "no such method"},
		"odd key request":     {"POST", "/keys/use", `{"id":"0011223344556677","x":1}`, 400, "x", "unknown field"},
		"misspelt switch":     {"PUT", "/rules?dryrun=true", `{"text":"rules: []"}`, 400, "dryrun", "unknown parameter"},
		"half a query":        {"DELETE", "/backends?name=" + n.cfg.Backends[0].Name + "&name=%zz", "", 400, "query", "invalid URL escape"},
		"two in one":          {"DELETE", "/backends?name=" + n.cfg.Backends[0].Name + ";name=b", "", 400, "query", "semicolon"},
		"unknown action":      {"PATCH", "/backends", `{"names":["` + n.cfg.Backends[0].Name + `"],"action":"stop"}`, 400, "action", `"stop"`},
		"health's reason":     {"PATCH", "/backends", `{"names":["` + n.cfg.Backends[0].Name + `"],"action":"down","reason":"health: mine"}`, 400, "reason", "health: "},
		"one unknown name":    {"PATCH", "/backends", `{"names":["` + n.cfg.Backends[0].Name + `","nobody"],"action":"drain"}`, 404, "names[1]", "nobody"},
		"no name":             {"DELETE", "/backends", "", 400, "name", "no backend"},
		"remove one unknown":  {"DELETE", "/backends?name=" + n.cfg.Backends[0].Name + "&name=nobody", "", 404, "name", "nobody"},
		"null for an update":  {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `null`, 400, "body", "is null"},
		"null for a backend":  {"POST", "/backends?force", `{"backends":[null]}`, 400, "backends[0].body", "is null"},
		"nothing to explain":  {"POST", "/explain", "", 400, "", "no body"},
		"alone, hand on":      {"POST", "/raft/transfer", "{}", 409, "", "the only voter"},
		"weight 0":            {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"weight":0}`, 400, "weight", "none"},
		"old version":         {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"weight":2,"if_version":1000000}`, 409, "", "version"},
		"negative new cache":  {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"kv_tokens":-1}`, 400, "kv_tokens", "negative"},
		"unknown backend":     {"PATCH", "/backends/no/body", `{"weight":2}`, 404, "", "no/body"},
		"bad new URL":         {"PATCH", "/backends/" + n.cfg.Backends[0].Name + "?force", `{"url":"ftp://x"}`, 400, "url", "ftp"},
		"silent new URL":      {"PATCH", "/backends/" + n.cfg.Backends[0].Name, `{"url":"http://127.0.0.3:1"}`, 422, "url", "no engine answers"},
		"rules: no YAML":      {"PUT", "/rules", `{"text":"rules:\n  - {strategy: random\n"}`, 400, "", "did not find"},
		"rules: nothing":      {"PUT", "/rules", `{"text":""}`, 400, "", "the text is empty"},
		"rules: no list":      {"PUT", "/rules", `{"text":"rules: 5"}`, 400, "rules", "not a list"},
		"rules: another key":  {"PUT", "/rules", `{"text":"rules: []\nstrategy: random\n"}`, 400, "strategy", "unknown key"},
		"rules: two texts":    {"PUT", "/rules", `{"text":"rules: []\n---\nrules: [{strategy: random}]\n"}`, 400, "", "more than one YAML document"},
		"rules: a bad second": {"PUT", "/rules", `{"text":"rules: []\n---\n{"}`, 400, "", "did not find"},
		"rules: comments":     {"PUT", "/rules", `{"text":"# none\n"}`, 400, "", "the text is empty"},
		"rules: too long":     {"PUT", "/rules", `{"text":"rules: [] #` + strings.Repeat("x", raftstore.MaxRulesBytes) + `"}`, 400, "", "bytes are more"},
		"rules: old version":  {"PUT", "/rules", `{"text":"rules: []","if_version":77}`, 409, "", "version"},
		"rules: dry, old":     {"PUT", "/rules?dry_run", `{"text":"rules: []","if_version":77}`, 409, "", "version"},
		"nobody to lead":      {"POST", "/raft/transfer", `{"to":"nobody"}`, 404, "to", "nobody"},
		"switch what":         {"PATCH", "/prefixes", `{}`, 400, "enabled", "missing"},
	} {
		req, err := http.NewRequest(tc.method, "http://"+n.AdminAddr()+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var refused admin.Refusal
		err = json.NewDecoder(resp.Body).Decode(&refused)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tc.status || tc.place != "" && refused.Place != tc.place || !strings.Contains(refused.Reason, tc.reason) {
			t.Errorf("%s: %d %+v %v", what, resp.StatusCode, refused, err)
		}
	}
	if after := n.store.Load().State(); after.Version != before.Version {
		t.Errorf("something was applied: %+v became %+v", before, after)
	}
}

func TestNothingToChange(t *testing.T) {
	t.Parallel()
	n := startAgreed(t, testConfig("http://127.0.0.3:1"))
	name := n.cfg.Backends[0].Name
	if _, err := client(n).Forced().SetBackendState(t.Context(), []string{name}, "drain", ""); err != nil {
		t.Fatal(err)
	}
	done, err := client(n).Forced().SetBackendState(t.Context(), []string{name}, "drain", "")
	if version := n.store.Load().State().Version; err != nil || done.Changed || done.Version != version {
		t.Errorf("%+v %v, the state has version %d", done, err, version)
	}
}

func TestKeysStayWhereTheyBelong(t *testing.T) {
	t.Parallel()
	var shown sync.Map
	listen := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if key := r.Header.Get("Authorization"); key != "" {
				shown.Store(r.Host, key)
			}
			w.WriteHeader(http.StatusBadGateway)
		}))
		t.Cleanup(s.Close)
		return s
	}
	own, other := listen(), listen()
	cfg := testConfig()
	cfg.Backends = []config.Backend{{Name: "gpu", URL: own.URL, APIKey: "sesame"}}
	n := startAgreed(t, cfg)
	change := func(method, path, body string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+n.AdminAddr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s %s: %d", method, path, resp.StatusCode)
		}
	}
	change("PATCH", "/backends/gpu", `{"url":"`+other.URL+`"}`)
	change("POST", "/backends", `{"backends":[{"name":"gpu","url":"`+other.URL+`"}]}`)
	if key, sent := shown.Load(strings.TrimPrefix(other.URL, "http://")); sent {
		t.Errorf("another URL was shown %v", key)
	}
	change("PATCH", "/backends/gpu", `{"url":"`+own.URL+`/v1"}`)
	if key, _ := shown.Load(strings.TrimPrefix(own.URL, "http://")); key != "Bearer sesame" {
		t.Errorf("its own URL was shown %v", key)
	}
}

// TestRulesOfTheFleet: mistakes are refused with their lines, and a dry run changes nothing.
func TestRulesOfTheFleet(t *testing.T) {
	t.Parallel()
	cfg := testConfig("http://127.0.0.3:1")
	cfg.Rules = []config.Rule{{Model: "own", Strategy: "session"}}
	n := startAgreed(t, cfg)
	c := client(n)
	if set, err := c.Rules(t.Context()); err != nil || set.Source != "configuration" || !reflect.DeepEqual(set.Rules, []admin.RuleStatus{{Model: "own", Strategy: "session"}}) {
		t.Errorf("%+v %v", set, err)
	}
	_, err := c.ApplyRules(t.Context(), "# ours\nrules:\n  - {strategy: random}\n  - {model: x, strategy: fastest}\n  - {path: /v1, stratgy: random}\n", nil, false)
	var refused *admin.Refusal
	if !errors.As(err, &refused) || refused.Line != 4 || len(refused.More) != 1 || refused.More[0].Line != 5 || !strings.Contains(refused.More[0].Remedy, "strategy") {
		t.Errorf("%v", err)
	}
	_, err = c.ApplyRules(t.Context(), "rules:\n  - {strategy: random}\n  - {model: x, strategy: fastest}\n  - {value: v, strategy: random}\n", nil, false)
	if !errors.As(err, &refused) || refused.Line != 3 || refused.Place != "rules[1].strategy" || len(refused.More) != 1 || refused.More[0].Line != 4 {
		t.Errorf("%v", err)
	}
	first := "rules:\n  - {strategy: random}\n"
	dry, err := c.ApplyRules(t.Context(), first, nil, true)
	if err != nil || !dry.DryRun || dry.Difference != "+rules:\n+  - {strategy: random}\n" || n.Rules().Source != "configuration" {
		t.Errorf("%+v %v", dry, err)
	}
	done, err := c.ApplyRules(t.Context(), first, new(uint64), false)
	if err != nil || done.DryRun || !done.Changed.Changed || done.Version == 0 {
		t.Fatalf("%+v %v", done, err)
	}
	if r, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(chatBody("own", "x"))); err != nil || r.Strategy != "random" {
		t.Errorf("%+v %v", r, err)
	}
	if set := n.Rules(); set.Source != "fleet" || set.Text != first || set.Version != done.Version {
		t.Errorf("%+v", set)
	}
	again, err := c.ApplyRules(t.Context(), "rules:\n  - {strategy: session}\n", &done.Version, false)
	if err != nil || again.Difference != " rules:\n-  - {strategy: random}\n+  - {strategy: session}\n" {
		t.Errorf("%+v %v", again, err)
	}
	same, err := c.ApplyRules(t.Context(), "rules:\n  - {strategy: session}\n", &again.Version, false)
	if err != nil || same.Changed.Changed || same.Difference != "" || same.Version != again.Version {
		t.Errorf("the same text again: %+v %v, it has version %d", same, err, again.Version)
	}
	if _, err := c.ApplyRules(t.Context(), first, &done.Version, false); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("%v", err)
	}
}

// TestToken: with a token only health and metrics are open; without one only this machine may
// change things.
func TestToken(t *testing.T) {
	leakCheck(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("short\n")
	cfg := testConfig()
	cfg.AdminTokenFile = file
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "16") {
		t.Errorf("a short token: %v", err)
	}
	write("the first token of all\n")
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "one word") {
		t.Errorf("a token of several words: %v", err)
	}
	write("the-first-token-of-all\n")
	n := startNode(t, cfg)
	ask := func(path, authorization string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+n.AdminAddr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for path := range map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true} {
		if status := ask(path, ""); status != http.StatusOK {
			t.Errorf("%s without a token: %d", path, status)
		}
	}
	for _, path := range []string{"/status", "/backends", "/keys", "/raft", "/nowhere"} {
		for _, wrong := range []string{"", "Bearer ", "Bearer the-first-token-of-al", "Basic the-first-token-of-all", "the-first-token-of-all"} {
			if status := ask(path, wrong); status != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d", path, wrong, status)
			}
		}
	}
	for _, right := range []string{"Bearer the-first-token-of-all", "bearer the-first-token-of-all", "Bearer  the-first-token-of-all"} {
		if status := ask("/status", right); status != http.StatusOK {
			t.Errorf("with %q: %d", right, status)
		}
	}
	if _, err := client(n).WithToken("", file).Status(t.Context()); err != nil {
		t.Error(err)
	}
	write("the-second-token-of-all")
	if status := ask("/status", "Bearer the-first-token-of-all"); status != http.StatusUnauthorized {
		t.Errorf("with a token that was replaced: %d", status)
	}
	if _, err := client(n).WithToken("the-second-token-of-all", "").Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if status := ask("/status", "Bearer the-second-token-of-all"); status != http.StatusInternalServerError {
		t.Errorf("without a file: %d", status)
	}
}

func TestFactsStay(t *testing.T) {
	cfg := fleetConfig("one", nil, "http://127.0.0.3:1", "http://127.0.0.3:2", "http://127.0.0.3:3")
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	own := n.backends.Roster()
	for i, u := range own.List {
		for seed := range 20 {
			n.tree.Record(u.ID, chain(100*i+seed, 64), now(), nil)
		}
	}
	count, xor := facts(n)
	if count == 0 {
		t.Fatal("nothing to keep")
	}
	state := &raftstore.State{Version: 7, Backends: []raftstore.Backend{
		{Generation: 1, Name: own.List[2].Name, URL: own.List[2].URL, Weight: 1, Version: 7},
		{Generation: 1, Name: own.List[1].Name, URL: own.List[1].URL, Weight: 1, Version: 7},
		{Generation: 1, Name: own.List[0].Name, URL: own.List[0].URL, Weight: 1, Version: 7},
	}}
	slices.SortFunc(state.Backends, func(a, b raftstore.Backend) int { return strings.Compare(a.Name, b.Name) })
	n.proposed.Store(true)
	n.adopt(state)
	if got, x := facts(n); got != count || x != xor {
		t.Errorf("%d facts became %d", count, got)
	}
	// A new generation clears a backend; an older state has no effect.
	next := *state
	next.Version, next.Backends = 9, slices.Clone(state.Backends)
	next.Backends[0].Generation = 2
	n.adopt(&next)
	n.adopt(state)
	if got, _ := facts(n); got != count/3*2 {
		t.Errorf("%d facts of %d are left by a new generation of one of three", got, count)
	}
	if n.backends.Roster().Version != 9 {
		t.Error("an older state was adopted")
	}
}

func TestEmptyAgreementWaits(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.adopt(&raftstore.State{Version: 1})
	if l := n.backends.Roster().List; len(l) != 1 {
		t.Errorf("%+v", l)
	}
	n.proposed.Store(true)
	n.adopt(&raftstore.State{Version: 2})
	if l := n.backends.Roster().List; len(l) != 0 {
		t.Errorf("%+v", l)
	}
}

func TestRefusedListGivesWay(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.refused.Store(true)
	for version, want := range []string{"127.0.0.3:1", "b", ""} {
		s := stateWith(uint64(version+1), 1)
		if want == "b" {
			s = stateWith(uint64(version+1), 1, want)
		}
		n.adopt(s)
		got := ""
		for _, u := range n.backends.Roster().List {
			got += u.Name
		}
		if got != want {
			t.Errorf("version %d: %q, want %q", version+1, got, want)
		}
	}
}

func TestStatesComeOutOfOrder(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1"))
	if err != nil {
		t.Fatal(err)
	}
	older, newer := stateWith(1, 1, "a"), stateWith(2, 1, "a", "b")
	newer.Switches.Hot = true
	newer.Hot = []raftstore.HotPrefix{{Anchor: 7, Depth: 4096, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}}
	n.adopt(newer)
	n.adopt(older)
	if m := scrape(t, n); m["grapevine_hot_prefixes"] != 1 || m["grapevine_hot_prefix_replicas"] != 2 || n.backends.Roster().Version != 2 {
		t.Errorf("version %d with %v hot prefixes", n.backends.Roster().Version, m["grapevine_hot_prefixes"])
	}
}

func TestUnchangedAgreementKeepsTheView(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.proposed.Store(true)
	own := n.backends.Roster().List[0]
	state := func(version uint64) *raftstore.State {
		return &raftstore.State{Version: version, Backends: []raftstore.Backend{{Generation: 1, Name: own.Name, URL: own.URL, Weight: 1}}}
	}
	n.adopt(state(1))
	view := n.router.View()
	n.adopt(state(2))
	if n.router.View() != view || !n.BackendList().Backends[0].Agreed {
		t.Error("a state without changes made a new view, or was not adopted")
	}
	n.adopt(&raftstore.State{Version: 3, Backends: []raftstore.Backend{{Generation: 1, Name: own.Name, URL: own.URL, Weight: 1, State: raftstore.Draining}}})
	if n.router.View() == view {
		t.Error("a drain made no new view")
	}
}

func TestLeadershipMoves(t *testing.T) {
	t.Parallel()
	nodes := startAgreeing(t)
	eventually(t, "the transfer", func() bool {
		_, others := leader(t, nodes)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		st, err := client(others[1]).TransferLeadership(ctx, others[0].Name())
		return err == nil && st.Leader == others[0].store.Load().ID()
	})
}

func TestTookOver(t *testing.T) {
	for _, tc := range []struct {
		leader, before, to string
		want               bool
	}{{"", "a", "", false}, {"a", "a", "", false}, {"b", "a", "", true}, {"", "a", "b", false}, {"a", "a", "b", false}, {"b", "a", "b", true}, {"a", "a", "a", true}} {
		if got := tookOver(tc.leader, tc.before, tc.to); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestVoterNamed(t *testing.T) {
	t.Parallel()
	servers := []raftstore.ServerStatus{
		{ID: "1", Name: "a", Voter: true}, {ID: "2", Name: "a", Voter: true, Alive: true}, {ID: "3", Name: "b", Alive: true},
		{ID: "4", Name: "c", Voter: true},
	}
	for to, want := range map[string]string{"a": "2", "1": "1", "2": "2", "c": "4"} {
		if v, refused := voterNamed(servers, to); refused != nil || v.ID != want {
			t.Errorf("%s: %+v %v", to, v, refused)
		}
	}
	for to, status := range map[string]int{"b": http.StatusConflict, "3": http.StatusConflict, "d": http.StatusNotFound} {
		if _, refused := voterNamed(servers, to); refused == nil || admin.RefusalOf(refused).Status != status {
			t.Errorf("%s: %v", to, refused)
		}
	}
}

func TestLoneLeaderIsHealthy(t *testing.T) {
	t.Parallel()
	n := startAgreed(t, testConfig("http://127.0.0.3:1"))
	var st *admin.RaftStatus
	eventually(t, "it leads", func() (leads bool) {
		var err error
		st, err = n.Raft()
		return err == nil && st.Role == "leader"
	})
	if len(st.Servers) != 1 || !st.Servers[0].Healthy || st.Servers[0].Index == 0 {
		t.Errorf("%+v", st.Servers)
	}
}
