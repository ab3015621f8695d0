package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

// labelledEngines starts an emulated engine of model qwen for each list of labels.
func labelledEngines(t *testing.T, cfg engine.Config, labels ...[]string) (list []config.Backend, servers []*engine.Server) {
	t.Helper()
	for i, l := range labels {
		s, err := engine.NewServer(engine.ServerConfig{Config: cfg, Models: []string{"qwen"}, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		list = append(list, config.Backend{URL: "http://" + s.Addr(), Name: fmt.Sprint("e", i), Labels: l})
		servers = append(servers, s)
	}
	return list, servers
}

var quick = engine.Config{PrefillRate: 1e6, DecodeStep: time.Millisecond}

// startRuled starts one node or, with others, three.
func startRuled(t *testing.T, others bool, list []config.Backend, edit func(*config.Config)) []*Node {
	t.Helper()
	adjust := func(c *config.Config) {
		c.Backends = append(c.Backends, list...)
		if edit != nil {
			edit(c)
		}
	}
	if others {
		return startAgreeingWith(t, adjust)
	}
	cfg := testConfig()
	adjust(&cfg)
	return []*Node{startAgreed(t, cfg)}
}

func applyRules(t *testing.T, nodes []*Node, text string) {
	t.Helper()
	if _, err := client(nodes[len(nodes)-1]).ApplyRules(t.Context(), text, nil, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rules on all nodes", func() bool {
		for _, n := range nodes {
			if n.Rules().Text != text {
				return false
			}
		}
		return true
	})
}

// send returns the answer's status, its backend and its body.
func send(t *testing.T, n *Node, path, session, body string) (status int, backend, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if session != "" {
		req.Header.Set("X-Session-Id", session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, "", ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, resp.Header.Get("X-Grapevine-Backend"), string(text)
}

// Clients ask for an alias, engines are asked for their model, and answers have the alias, streamed or not.
func TestAliasesInAnswers(t *testing.T) {
	t.Parallel()
	list, _ := labelledEngines(t, quick, nil, nil)
	nodes := startRuled(t, false, list, nil)
	n := nodes[0]
	eventually(t, "the engines' models", func() bool { return len(n.router.View().Models()) == 1 })
	applyRules(t, nodes, "rules:\n  - {name: mini, model: gpt-4o-mini, to: qwen}\n  - {name: all, model: 'gpt-*', to: qwen}\n")
	const talk = `,"max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`
	for _, model := range []string{"gpt-4o-mini", "gpt-else", "qwen"} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{"model":%q,"stream":%t`, model, stream) + talk
				if path == "/v1/responses" {
					body = fmt.Sprintf(`{"model":%q,"stream":%t,"max_output_tokens":3,"input":"hello"}`, model, stream)
				}
				status, _, text := send(t, n, path, "", body)
				models := modelsIn(t, text, stream)
				if status != http.StatusOK || len(models) == 0 {
					t.Fatalf("%s %s, stream %t: %d %s", path, model, stream, status, text)
				}
				for _, got := range models {
					if got != model {
						t.Errorf("%s %s, stream %t: the answer is of %s: %s", path, model, stream, got, text)
					}
				}
			}
		}
	}
	if status, _, text := send(t, n, "/v1/chat/completions", "", `{"model":"o1"`+talk); status != http.StatusNotFound {
		t.Errorf("another model: %d %s", status, text)
	}
	resp, err := http.Get("http://" + n.Addr() + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var page struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || fmt.Sprint(page.Data) != "[{gpt-4o-mini} {qwen}]" {
		t.Errorf("/v1/models: %v, %v", page.Data, err)
	}
	r, err := client(n).Explain(t.Context(), "/v1/chat/completions", nil, []byte(`{"model":"gpt-4o-mini"`+talk))
	if err != nil || r.Rule != "mini" || r.Asked != "gpt-4o-mini" || r.Model != "qwen" {
		t.Errorf("explain: %+v, %v", r, err)
	}
	if got := scrape(t, n)[`grapevine_rule_requests_total{rule="mini",target="pool"}`]; got != 6 {
		t.Errorf("the rule has counted %v of 6 requests", got)
	}
}

// modelsIn returns the models that an answer or its events name.
func modelsIn(t *testing.T, text string, stream bool) (models []string) {
	t.Helper()
	lines := []string{text}
	if stream {
		lines = nil
		for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
			if data, found := strings.CutPrefix(s.Text(), "data: "); found && data != "[DONE]" {
				lines = append(lines, data)
			}
		}
	}
	for _, line := range lines {
		var v struct {
			Model             string
			Message, Response struct{ Model string }
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, m := range []string{v.Model, v.Message.Model, v.Response.Model} {
			if m != "" {
				models = append(models, m)
			}
		}
	}
	return models
}

// A canary gets its share of 10,000 clients, each of which stays on its side at whatever node it enters.
func TestCanary(t *testing.T) {
	t.Parallel()
	const clients, share = 10_000, 0.05
	list, _ := labelledEngines(t, quick, []string{"version=1"}, []string{"version=2"})
	nodes := startRuled(t, true, list, nil)
	applyRules(t, nodes, "rules:\n  - {name: canary, model: qwen, share: 5%, pool: [version=2]}\n  - {model: qwen, pool: [version=1]}\n")
	var side [3][clients]bool
	var work sync.WaitGroup
	for worker := range 12 {
		work.Go(func() {
			for i := worker; i < clients; i += 12 {
				for round := range 3 {
					if round > 0 && i%20 != 0 {
						continue // a part of them comes again, at the other nodes
					}
					status, backend, text := send(t, nodes[(i+round)%3], "/v1/completions", fmt.Sprint("client-", i), `{"model":"qwen","prompt":"x","max_tokens":1}`)
					if status != http.StatusOK {
						t.Errorf("%d %s", status, text)
						return
					}
					side[round][i] = backend == "e1"
				}
			}
		})
	}
	work.Wait()
	n := 0
	for i := range clients {
		if side[0][i] {
			n++
		}
		if i%20 == 0 && (side[1][i] != side[0][i] || side[2][i] != side[0][i]) {
			t.Errorf("client %d changes sides", i)
		}
	}
	if sd := math.Sqrt(clients * share * (1 - share)); math.Abs(float64(n)-clients*share) > 4*sd {
		t.Errorf("the canary has %d of %d clients", n, clients)
	}
	t.Logf("the canary has %d of %d clients", n, clients)
}

// When the engines of a pool die, its fallback serves, and the pool again once they are back.
func TestPoolDies(t *testing.T) {
	t.Parallel()
	list, servers := labelledEngines(t, quick, []string{"tier=fast"}, []string{"tier=fast"}, []string{"tier=spare"})
	nodes := startRuled(t, true, list, func(c *config.Config) {
		c.ProbePath, c.ProbeInterval, c.SlowStart = "/health", 20*time.Millisecond, 0
	})
	applyRules(t, nodes, "rules:\n  - {name: fast, model: qwen, pool: [tier=fast], fallback: [tier=spare]}\n")
	const body = `{"model":"qwen","prompt":"x","max_tokens":1}`
	all := func(what string, want func(backend string) bool) {
		t.Helper()
		for i := range 30 {
			if status, backend, text := send(t, nodes[i%3], "/v1/completions", "", body); status != http.StatusOK || !want(backend) {
				t.Fatalf("%s: request %d: %d from %s: %s", what, i, status, backend, text)
			}
		}
	}
	spare := func(backend string) bool { return backend == "e2" }
	all("all engines", func(backend string) bool { return !spare(backend) })
	addrs := []string{servers[0].Addr(), servers[1].Addr()}
	for _, s := range servers[:2] {
		_ = s.Close()
	}
	all("without the pool", spare) // no request fails
	r, err := client(nodes[0]).Explain(t.Context(), "/v1/completions", nil, []byte(body))
	if err != nil || !r.Fallback || r.Pool != "tier=spare" || r.Backend != "e2" {
		t.Errorf("explain: %+v, %v", r, err)
	}
	again, err := engine.NewServer(engine.ServerConfig{Config: quick, Models: []string{"qwen"}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.Close() })
	if err := again.Start(addrs[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool to serve again", func() bool {
		_, backend, _ := send(t, nodes[1], "/v1/completions", "", body)
		return backend == "e0"
	})
}

// Requests stay in the zone of their node while it is idle, and use the other when it is busy.
func TestZoneUnderLoad(t *testing.T) {
	t.Parallel()
	list, _ := labelledEngines(t, engine.Config{PrefillRate: 20_000, DecodeStep: time.Millisecond}, []string{"zone=a"}, []string{"zone=b"})
	nodes := startRuled(t, false, list, func(c *config.Config) { c.Zone, c.ZoneCost, c.SlowStart = "a", 100*time.Millisecond, 0 })
	n := nodes[0]
	prompt := func(i int) string {
		return fmt.Sprintf(`{"model":"qwen","stream":true,"max_tokens":1,"prompt":%q}`, strings.Repeat(fmt.Sprint(i, " words "), 1000))
	}
	for i := range 10 {
		if _, backend, _ := send(t, n, "/v1/completions", "", prompt(i)); backend != "e0" {
			t.Fatalf("request %d leaves the idle zone for %s", i, backend)
		}
	}
	r, err := client(n).Explain(t.Context(), "/v1/completions", nil, []byte(prompt(99)))
	if err != nil || len(r.Candidates) != 2 || r.Candidates[0].ZoneS != 0 || r.Candidates[1].ZoneS != 0.1 {
		t.Errorf("explain: %+v, %v", r, err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	by := make(map[string]int)
	for i := range 24 { // 2 s of prefill, at once
		work.Go(func() {
			_, backend, _ := send(t, n, "/v1/completions", "", prompt(1000+i))
			mu.Lock()
			defer mu.Unlock()
			by[backend]++
		})
	}
	work.Wait()
	if by["e0"] < 6 || by["e1"] < 6 {
		t.Errorf("24 requests at once go to %v", by)
	}
}

// Mistakes in targets are refused with their line, and labels can be changed.
func TestTargetsAreChecked(t *testing.T) {
	t.Parallel()
	list, _ := labelledEngines(t, quick, nil)
	nodes := startRuled(t, false, list, nil)
	c := client(nodes[0])
	for text, want := range map[string]string{
		"rules:\n  - {pool: [zone]}\n":                                        "NAME=VALUE",
		"rules:\n  - {share: 5%, to: m}\n":                                    "share without a name",
		"rules:\n  - {share: '5', name: n, to: m}\n":                          "write 5%",
		"rules:\n  - {fallback: [any], to: m}\n":                              "fallback without a pool",
		"rules:\n  - {session: cookie, to: m}\n":                              "header:NAME, body:MEMBER or client",
		"rules:\n  - {name: n, to: a}\n  - {name: n, to: b}\n":                "give each rule its own",
		"rules:\n  - {pool: [a=b], fallback: [a=b]}\n":                        "the pool itself",
		"rules:\n  - {pol: [a=b]}\n":                                          "did you mean pool?",
		"rules:\n  - {to: \"a\\\\b\"}\n":                                      "without quotes",
		"rules:\n  - {fallback: [any, zone=a], pool: [zone=b]}\n":             "any alone",
		"rules:\n  - {name: n, share: 5%, pool: [" + strings.Repeat("a", 200): "YAML",
	} {
		_, err := c.ApplyRules(t.Context(), text, nil, true)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	done, err := c.SetLabels(t.Context(), "e0", []string{"zone=b", "tier=x"})
	if err != nil || !done.Changed {
		t.Fatal(done, err)
	}
	got, err := c.Backends(t.Context())
	if err != nil || fmt.Sprint(got.Backends[0].Labels) != "[tier=x zone=b]" {
		t.Errorf("%+v, %v", got.Backends[0], err)
	}
	if _, err := c.SetLabels(t.Context(), "e0", []string{"zone"}); err == nil || !strings.Contains(err.Error(), "NAME=VALUE") {
		t.Errorf("a wrong label: %v", err)
	}
	if _, err := c.AddBackends(t.Context(), []admin.NewBackend{{URL: "http://127.0.0.3:1", Labels: []string{"a=b=c"}}}, true); err == nil {
		t.Error("a backend with a wrong label is added")
	}
	var out bytes.Buffer
	if err := json.NewEncoder(&out).Encode(nodes[0].Rules()); err != nil || !strings.Contains(out.String(), `"rules":[]`) {
		t.Errorf("%s %v", out.String(), err)
	}
}

// A rule that only chooses a strategy leaves the model, and so the hashes, as they are without a rule.
func TestRulesWithoutTargetsKeepTheModel(t *testing.T) {
	t.Parallel()
	list, _ := labelledEngines(t, quick, nil)
	nodes := startRuled(t, false, list, nil)
	n := nodes[0]
	eventually(t, "the engine's models", func() bool { return len(n.router.View().Models()) == 1 })
	applyRules(t, nodes, "rules:\n  - {header: X-Session-Id, strategy: random}\n")
	body := `{"model":"qwen","max_tokens":3,"messages":[{"role":"user","content":"` + strings.Repeat("hello ", 500) + `"}]}`
	if status, _, text := send(t, n, "/v1/chat/completions", "by the rule", body); status != http.StatusOK || !strings.Contains(text, `"qwen"`) {
		t.Fatalf("%d %s", status, text)
	}
	r, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.MatchedBlocks == 0 {
		t.Error("without the rule, the prompt that was sent under it is not known")
	}
}
