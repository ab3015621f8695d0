package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/node/metrics"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
)

func startEngine(t *testing.T) string { return startRanks(t, 1) }

func startRanks(t *testing.T, ranks int) string {
	t.Helper()
	return "http://" + emulated(t, engine.ServerConfig{
		Config: engine.Config{PrefillRate: 1e6, DecodeStep: time.Millisecond}, Models: []string{"m"}, Ranks: ranks, Log: zerolog.Nop(),
	}).Addr()
}

// emulated starts an emulated engine, which ends with the test.
func emulated(t *testing.T, cfg engine.ServerConfig) *engine.Server {
	t.Helper()
	s, err := engine.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	return s
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func turn(t *testing.T, n *Node, stream bool, conversation []message) (backend, reply string, cached, prompt int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "messages": conversation, "max_tokens": 16, "stream": stream})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	backend = resp.Header.Get("x-grapevine-backend")
	type usage struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	var answer struct {
		Choices []struct{ Message, Delta message }
		Usage   *usage
	}
	if !stream {
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		return backend, answer.Choices[0].Message.Content, answer.Usage.Details.Cached, answer.Usage.Prompt
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		answer.Choices, answer.Usage = nil, nil
		if err := json.Unmarshal([]byte(data), &answer); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if answer.Usage != nil {
			t.Error("the usage that the router asked for reached a client that had not")
		}
		for _, c := range answer.Choices {
			reply += c.Delta.Content
		}
	}
	return backend, reply, -1, -1
}

func TestConversationStays(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(startEngine(t), startEngine(t), startEngine(t), startEngine(t)))
	used := make(map[string]bool)
	const conversations, turns = 16, 3
	for c := range conversations {
		talk := []message{{"user", fmt.Sprintf("Conversation %d. ", c) + strings.Repeat(fmt.Sprintf("About subject %d, at length. ", c), 150)}}
		first := ""
		for i := range turns {
			stream := i%2 == 1
			backend, reply, cached, prompt := turn(t, n, stream, talk)
			if first == "" {
				first, used[backend] = backend, true
			}
			if backend != first {
				t.Errorf("conversation %d, turn %d went to %s, the first to %s", c, i+1, backend, first)
			}
			if !stream && i > 0 && cached < prompt*8/10 {
				t.Errorf("conversation %d, turn %d: %d of %d prompt tokens cached", c, i+1, cached, prompt)
			}
			if reply == "" {
				t.Fatalf("conversation %d, turn %d: no reply", c, i+1)
			}
			talk = append(talk, message{"assistant", reply}, message{"user", fmt.Sprintf("And number %d?", i+1)})
		}
	}
	if len(used) < 2 { // one in a billion by chance
		t.Errorf("%d conversations use %d of 4 idle engines", conversations, len(used))
	}
	eventually(t, "every count is back at zero", func() bool {
		series := scrape(t, n)
		for name, v := range series {
			if strings.HasPrefix(name, "grapevine_backend_active_requests") && v != 0 || strings.HasPrefix(name, "grapevine_backend_prefill_tokens{") && v != 0 {
				return false
			}
		}
		return series["grapevine_requests_in_flight"] == 0 && series[`grapevine_requests_total{code="200",kind="chat"}`] == conversations*turns
	})
	series := scrape(t, n)
	if cached, prompt := series[`grapevine_tokens_total{model="m",type="cached"}`], series[`grapevine_tokens_total{model="m",type="prompt"}`]; cached < prompt/2 {
		t.Errorf("%v of %v prompt tokens were cached", cached, prompt)
	}
	if series[`grapevine_decisions_total{rung="cache",strategy="prefix"}`] < conversations*(turns-1) {
		t.Errorf("decisions by cache: %v", series[`grapevine_decisions_total{rung="cache",strategy="prefix"}`])
	}
}

func TestAffinityTellsWhetherCachesPay(t *testing.T) {
	n := unstarted(t, "a", "b")
	if list := n.Status().Affinity; list == nil || len(list) != 0 {
		t.Errorf("without requests: %+v", list)
	}
	for seed := range 8 {
		n.serve(t, chain(seed, 40), now())
	}
	list := n.Status().Affinity
	if len(list) != 1 || list[0].Model != "" || list[0].RequestsPerS <= 0 || list[0].PromptsS <= 0 || list[0].Price <= 0 ||
		list[0].SavedS != 0 || list[0].WaitedS != 0 || !strings.HasPrefix(list[0].Verdict, "routed by load: caches save 0 % of prefill") {
		t.Fatalf("unique prompts: %+v", list)
	}
	holder := n.serve(t, chain(100, 40), now())
	other := map[string]string{"a": "b", "b": "a"}[holder]
	var busy policy.Attempt // keeps the holder busy for longer than the prompt would the other, so that no new one would go there
	longer := policy.Request{Hashes: chain(200, 60), PromptBytes: 60 * 512, Exclude: []prefixtree.Backend{n.backends.Roster().Named(other).ID}}
	if err := n.router.Pick(&longer, now(), &busy); err != nil {
		t.Fatal(err)
	}
	defer func() { busy.End(policy.Outcome{Failed: books.ClientGone}, now()) }()
	if again := n.serve(t, chain(100, 40), now()); again != holder {
		t.Fatalf("the prompt went to %s, then to %s", holder, again)
	}
	a := n.Status().Affinity[0]
	if a.SavedS <= 0 || a.WaitedS <= 0 || a.PrefillS >= a.PromptsS || !strings.HasPrefix(a.Verdict, "caches save ") {
		t.Errorf("a prompt again: %+v", a)
	}
}

func TestVerdict(t *testing.T) {
	for want, a := range map[string]demand.Affinity{
		"caches save 62 % of prefill; choosing them saves 3.1 s of prefill for 0.2 s of longer waits, per second":   {Whole: 8, Prefill: 3.04, Saved: 3.1, Waited: 0.2},
		"caches save 50 % of prefill; choosing them saves 1.0 ms of prefill for 0.0 ms of longer waits, per second": {Whole: 0.1, Prefill: 0.05, Saved: 0.001},
		"routed by load: caches save 0 % of prefill; choosing them adds less than 1 %":                              {Whole: 8, Prefill: 8.000001},
		"routed by load: caches save 90 % of prefill; choosing them adds less than 1 %":                             {Whole: 100, Prefill: 10, Saved: 0.99, Waited: 0.1},
	} {
		if got := verdict(a); got != want {
			t.Errorf("%+v: %q, want %q", a, got, want)
		}
	}
}

func TestAffinityMetricAddsUp(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.metrics.AddModels([]string{"m"})
	m := metrics.New("v", func(s metrics.Scrape) {
		n.collectAffinity(s, []demand.Affinity{{Model: "m", Whole: 4, Prefill: 3, Saved: 1, Waited: 0.5}, {Model: "*", Whole: 2, Saved: 1}, {Whole: 1, Saved: 1}})
	})
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != "grapevine_affinity_load" {
			continue
		}
		for _, series := range f.GetMetric() { // labels are sorted: kind, model
			got[series.GetLabel()[1].GetValue()+" "+series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
		}
	}
	if want := map[string]float64{
		"m prompts": 4, "m prefill": 3, "m saved": 1, "m waited": 0.5,
		"other prompts": 3, "other prefill": 0, "other saved": 2, "other waited": 0,
	}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestExplainShowsThePlacement(t *testing.T) {
	leakCheck(t)
	n := startNode(t, testConfig(startEngine(t), startEngine(t)))
	talk := []message{{"user", strings.Repeat(longText, 150)}}
	backend, reply, _, _ := turn(t, n, false, talk)
	talk = append(talk, message{"assistant", reply}, message{"user", "Go on."})
	body, err := json.Marshal(map[string]any{"model": "m", "messages": talk})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request has ended", func() bool { return n.proxy.InFlight() == 0 })
	r, err := explain(t, n, "/v1/chat/completions", nil, string(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.Backend != backend || r.Rung != "cache" || r.MatchedBlocks < 10 || r.PredictedTokens < r.PromptTokens*8/10 {
		t.Fatalf("the first turn went to %s, the receipt of the second is %+v", backend, r)
	}
	if len(r.Candidates) != 2 || !strings.HasPrefix(r.Why, "compared with "+r.Candidates[1].Backend+", which holds 0 tokens, it saves ") {
		t.Errorf("%q: %+v", r.Why, r.Candidates)
	}
	for _, c := range r.Candidates {
		if sum := c.WaitS + c.ComputeS + c.LaterS; c.Cost <= 0 || math.Abs(sum-c.Cost) > 1e-9 {
			t.Errorf("the parts add up to %v: %+v", sum, c)
		}
	}
}
