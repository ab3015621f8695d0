package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/node"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

const (
	blockTokens = 16
	// placing is how long a conversation waits for its placement to reach all routers: a router that lost its facts never has it.
	placing = 2 * time.Second
	// throughRelays as the setting events of a talk: the operator gives addresses of streams, which are those of relays.
	throughRelays = "relays"
	// hitsNoise: the shares of cached tokens of two runs of 640 requests differ by chance, by 0.015 on average.
	hitsNoise = 0.06
)

// talk is conversations of many turns and branches behind shared system prompts, over routers and engines in this process.
type talk struct {
	t       *testing.T
	engines []*engine.Server
	routers []*node.Node
	logs    []string // their access logs
	client  *http.Client
	cfg     config.Config // of the next router
	relays  []*relay

	mu    sync.Mutex // guards what follows
	last  [][]byte   // by engine: the body of its last request
	sent  [][]string // by engine: the texts that it computed, prompts with their answers
	asked map[string]asked
}

// asked is a request that was answered, by the id that the router logged.
type asked struct {
	router, engine int
	prompt         int // tokens
	messages       int
	// now is what the chosen engine held of the prompt when it was sent, cached what the engine found and past what it computed
	// since the test began, in tokens.
	now, cached, past int
}

func newTalk(t *testing.T, engines, routers int, change func(*engine.ServerConfig), follow string) *talk {
	w := &talk{t: t, client: &http.Client{Timeout: time.Minute}, last: make([][]byte, engines), sent: make([][]string, engines), asked: make(map[string]asked)}
	cfg := config.Default()
	cfg.Secret, cfg.Gossip, cfg.ResponseHeaders = "the secret of a fleet that is a test", "127.0.0.1:0", "all"
	cfg.Listen, cfg.Admin, cfg.GossipInsecure = "127.0.0.1:0", "127.0.0.1:0", true
	cfg.MetricsInterval, cfg.SlowStart = time.Second, 0
	cfg.Log = zerolog.Nop()
	for i := range engines {
		c := engine.ServerConfig{Config: engine.Config{KVTokens: 6_000, PrefillRate: 400_000, DecodeStep: 200 * time.Microsecond, BlockTokens: blockTokens}}
		c.Events, c.EventsReplay = "127.0.0.1:0", "127.0.0.1:0"
		change(&c)
		s, err := engine.NewServer(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		w.engines = append(w.engines, s)
		b := config.Backend{URL: "http://" + s.Addr(), Name: fmt.Sprint("e", i)}
		if follow == throughRelays {
			var relays []*relay
			b.Events, relays = streamThroughRelays(t, s)
			w.relays = append(w.relays, relays...)
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	if follow == throughRelays {
		follow = config.EventsOff
	}
	w.cfg = cfg
	for range routers {
		w.addRouter(follow)
	}
	return w
}

// addRouter starts another router, whose setting events is follow.
func (w *talk) addRouter(follow string) {
	cfg := w.cfg
	cfg.NodeName, cfg.AccessLog, cfg.AccessLogFile = fmt.Sprint("n", len(w.routers)), "all", filepath.Join(w.t.TempDir(), "access")
	w.logs = append(w.logs, cfg.AccessLogFile)
	cfg.Events = follow
	if len(w.routers) > 0 {
		cfg.Join = []string{w.routers[0].GossipAddr()}
	}
	n, err := node.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = n.Stop(ctx)
	})
	w.routers = append(w.routers, n)
}

func (w *talk) await(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			for _, n := range w.routers {
				for _, b := range n.BackendList().Backends {
					w.t.Logf("%s %s %+v", n.Name(), b.Name, b.Cache)
				}
			}
			w.t.Fatalf("no %s within 30 s", what)
		}
	}
}

// followed waits until every engine is followed by two routers whose streams are live.
func (w *talk) followed() {
	w.await("exact caches", func() bool {
		exact := 0
		for _, n := range w.routers {
			for _, b := range n.BackendList().Backends {
				if b.Cache.Known == "exact" {
					exact++
				}
			}
		}
		return exact >= min(2, len(w.routers))*len(w.engines)
	})
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func prose(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%x ", r.Uint32())
	}
	return b.String()
}

// rendered is a prompt as the emulated engine has it.
func rendered(messages []message) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "<|%s|>\n%s<|end|>\n", m.Role, m.Content)
	}
	return b.String() + "<|assistant|>\n"
}

// past returns how many tokens of a prompt an engine has computed, in whole blocks.
func (w *talk) past(e int, text string) (tokens int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent[e] {
		n := 0
		for n < len(s) && n < len(text) && s[n] == text[n] {
			n++
		}
		tokens = max(tokens, n/engine.TokenBytes/blockTokens*blockTokens)
	}
	return tokens
}

func bodyOf(messages []message, output int) []byte {
	body, _ := json.Marshal(map[string]any{"model": "emulated", "messages": messages, "max_tokens": output})
	return body
}

func (w *talk) ask(router int, messages []message, output int) (answer string) {
	answer, _ = w.askAs(nil, router, messages, output)
	return answer
}

// askAs asks with headers that name the client's conversation.
func (w *talk) askAs(names http.Header, router int, messages []message, output int) (answer string, a asked) {
	body := bodyOf(messages, output)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://"+w.routers[router].Addr()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return "", a
	}
	id := fmt.Sprintf("%016x", rand.Uint64())
	maps.Copy(req.Header, names)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	text, now, tokens := rendered(messages), make([]int, len(w.engines)), 0
	for i, e := range w.engines {
		held, err := e.Cached("/v1/chat/completions", body)
		if err != nil {
			w.t.Error(err)
		}
		now[i], tokens = held.CachedTokens, held.PromptTokens
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Error(err)
		return "", a
	}
	reply, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	var out struct {
		Choices []struct{ Message message }
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(reply, &out); err != nil || len(out.Choices) == 0 {
		w.t.Errorf("%d: %s", resp.StatusCode, reply)
		return "", a
	}
	answer = out.Choices[0].Message.Content
	e, err := strconv.Atoi(strings.TrimPrefix(resp.Header.Get("X-Grapevine-Backend"), "e"))
	if err != nil {
		w.t.Error(err)
		return "", a
	}
	a = asked{router: router, engine: e, prompt: tokens, messages: len(messages), now: now[e], cached: out.Usage.Details.Cached, past: w.past(e, text)}
	w.mu.Lock()
	w.asked[id] = a
	w.last[e] = body
	w.sent[e] = append(w.sent[e], text+answer)
	w.mu.Unlock()
	w.placed(e, body)
	return answer, a
}

// placed waits until the placement of a prompt has reached every router, or the engine has evicted some of the prompt.
func (w *talk) placed(e int, body []byte) {
	everywhere := func() bool {
		for i := range w.routers {
			if r, c := w.candidate(i, e, body); c.MatchedBlocks < r.Blocks {
				return false
			}
		}
		return true
	}
	held := func() bool {
		at, err := w.engines[e].Cached("/v1/chat/completions", body)
		return err == nil && at.PromptTokens-at.CachedTokens <= blockTokens
	}
	for end := time.Now().Add(placing); held() && !everywhere() && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
}

// candidate is what a router thinks of an engine for a prompt.
func (w *talk) candidate(router, e int, body []byte) (*admin.Receipt, admin.Candidate) {
	w.t.Helper()
	r, err := w.routers[router].Explain("/v1/chat/completions", func(string) []byte { return nil }, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range r.Candidates {
		if c.Backend == fmt.Sprint("e", e) {
			return r, c
		}
	}
	return r, admin.Candidate{}
}

// run plays conversations at the same time, each request at a random router.
func (w *talk) run(seed uint64, clients, turns int) {
	var work sync.WaitGroup
	for c := range clients {
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			system := message{"system", prose(rand.New(rand.NewPCG(seed, uint64(c%3+1000))), 200)}
			talk := []message{system}
			var left [][]message // earlier conversations
			for range turns {
				if r.IntN(4) == 0 || len(talk) > 14 {
					left = append(left, talk)
					if talk = []message{system}; len(left) > 2 && r.IntN(2) == 0 {
						talk = left[r.IntN(len(left)-1)] // goes on, perhaps after its eviction
					}
				} else if len(talk) > 4 && r.IntN(6) == 0 {
					talk = talk[:len(talk)-2] // another question instead of the last one
				}
				talk = append(slices.Clip(talk), message{"user", prose(r, 20+r.IntN(150))})
				answer := w.ask(r.IntN(len(w.routers)), talk, 10+r.IntN(60))
				if answer == "" {
					return
				}
				talk = append(talk, message{"assistant", answer})
			}
		})
	}
	work.Wait()
}

// prediction is what a router expected a request to find in the engine's cache, by its access log.
type prediction struct {
	ID     string `json:"id"`
	Tokens int    `json:"predicted_tokens"`
	Exact  bool   `json:"exact"`
}

// predictions waits until the routers have logged all requests.
func (w *talk) predictions() (all map[string]prediction) {
	w.await("lines in the access logs", func() bool {
		all = make(map[string]prediction)
		for _, path := range w.logs {
			text, err := os.ReadFile(path)
			if err != nil {
				w.t.Fatal(err)
			}
			for line := range bytes.Lines(text) {
				var p prediction
				if json.Unmarshal(line, &p) == nil { // the last line may be incomplete
					all[p.ID] = p
				}
			}
		}
		for id := range w.asked {
			if _, logged := all[id]; !logged {
				return false
			}
		}
		return true
	})
	return all
}

// accuracy is how near predictions were.
type accuracy struct {
	hits    float64 // share of the prompt tokens that engines computed before
	error   float64 // share of the prompt tokens
	within  float64 // share of the requests that were predicted within a block
	exact   float64 // share of the requests whose prediction the router called exact
	exactIn float64 // share of these within a block
}

// report logs how near the predictions were, with the wrong ones by their causes, and forgets the requests.
func (w *talk) report(name string) (a accuracy) {
	predicted := w.predictions()
	type group struct {
		requests, tokens int
		examples         []string
	}
	groups := make(map[string]*group)
	prompt, held, cached, missed, within, exact, exactIn := 0, 0, 0, 0, 0, 0, 0
	for id, r := range w.asked {
		p := predicted[id]
		held += r.now
		prompt, cached, missed = prompt+r.prompt, cached+r.cached, missed+max(p.Tokens-r.cached, r.cached-p.Tokens)
		why := w.cause(&r, &p)
		if why == right {
			within++
		}
		if p.Exact {
			if exact++; why == right {
				exactIn++
			}
		}
		why = w.source(&r, &p) + ": " + why
		g := groups[why]
		if g == nil {
			g = &group{}
			groups[why] = g
		}
		g.requests++
		if g.tokens += max(p.Tokens-r.cached, r.cached-p.Tokens); len(g.examples) < 3 && !strings.HasSuffix(why, right) {
			g.examples = append(g.examples, fmt.Sprintf("n%d at e%d: predicted %d, held %d, found %d, computed once %d of %d tokens in %d messages",
				r.router, r.engine, p.Tokens, r.now, r.cached, r.past, r.prompt, r.messages))
		}
	}
	share := func(part, all int) float64 { return float64(part) / float64(max(all, 1)) }
	a = accuracy{share(held, prompt), share(missed, prompt), share(within, len(w.asked)), share(exact, len(w.asked)), share(exactIn, exact)}
	w.t.Logf("%-15s %4d requests, %.1f %% of prompt tokens cached, error %.2f %%, within a block %.1f %%; exact %.0f %%, of these within a block %.2f %%", name,
		len(w.asked), 100*share(cached, prompt), 100*a.error, 100*a.within, 100*a.exact, 100*a.exactIn)
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		g := groups[why]
		w.t.Logf("   %-45s %4d requests, %.2f %% of prompt tokens", why, g.requests, 100*share(g.tokens, prompt))
		for _, s := range g.examples {
			w.t.Log("        ", s)
		}
	}
	w.asked = make(map[string]asked)
	return a
}

// source is how the router knew the cache of the engine that it chose.
func (w *talk) source(r *asked, p *prediction) string {
	if p.Exact {
		return "exact"
	}
	for _, b := range w.routers[r.router].BackendList().Backends {
		if b.Name == fmt.Sprint("e", r.engine) && slices.Contains(b.Cache.Followers, w.routers[r.router].Name()) {
			return "not sure"
		}
	}
	return "no stream"
}

const right = "right"

// cause is why a prediction was wrong by more than a block.
func (w *talk) cause(r *asked, p *prediction) string {
	far := func(a, b int) bool { return a-b > blockTokens || b-a > blockTokens }
	switch {
	case !far(p.Tokens, r.cached):
		return right
	case !far(p.Tokens, r.now):
		return "changed before it was computed"
	case p.Tokens > r.cached && r.cached < r.past-blockTokens:
		return "too many, some were evicted"
	case p.Tokens > r.cached:
		return "too many, none was evicted"
	case r.cached < r.past-blockTokens:
		return "too few, some were evicted"
	}
	return "too few, none was evicted"
}

// Predictions must be much better with events than without, whatever befalls the stream, and exact where a router says so. With 20 % lost they
// may be as wrong as prediction alone in the same run: a gap stays unseen until the next batch, which comes late on a busy machine. A stream
// that loses batches for good is not used. On a busy machine more happens between a decision and the engine's answer, so a case that misses
// is played again: a defect misses three times.
func TestCacheEvents(t *testing.T) {
	none := func(*engine.ServerConfig) {}
	alone := talkWithEvents(t, "prediction", "off", 3, none)
	if alone.error == 0 || alone.error > 0.2 {
		t.Fatalf("prediction alone has an error of %.3f; want more than 0 and at most 0.2", alone.error)
	}
	for _, c := range []struct {
		name    string
		nodes   int
		change  func(*engine.ServerConfig)
		error   float64 // at most, of the prompt tokens
		exactIn float64 // least share of the exact predictions within one block
	}{
		{"one router", 1, none, 0.02, 0.96},
		{"three routers", 3, none, 0.02, 0.95},
		{"SGLang", 3, func(c *engine.ServerConfig) { c.MetricsStyle = engine.StyleSGLang }, 0.04, 0.92},
		{"5 % lost", 3, func(c *engine.ServerConfig) { c.EventsLoss = 5 }, 0.03, 0.92},
		{"20 % lost", 3, func(c *engine.ServerConfig) { c.EventsLoss = 20 }, max(0.08, 1.5*alone.error), 0.5},
		{"20 % lost, no replay", 3, func(c *engine.ServerConfig) { c.EventsLoss, c.EventsReplay = 20, "" }, 0.2, 0},
		{"restarts", 3, func(c *engine.ServerConfig) { c.EventsRestart = 1500 }, 0.04, 0.93},
	} {
		for try := 1; ; try++ {
			a := talkWithEvents(t, c.name, "auto", c.nodes, c.change)
			if a.error <= c.error && a.exactIn >= c.exactIn {
				break
			}
			missed := fmt.Sprintf("%s: error of %.3f, %.3f of the exact predictions within one block; want at most %.3f and at least %.2f",
				c.name, a.error, a.exactIn, c.error, c.exactIn)
			if try == 3 {
				t.Error(missed)
				break
			}
			t.Log(missed, "- played again")
		}
	}
}

// talkWithEvents lets eight clients talk through routers to four engines, and returns how near the routers' predictions were once the
// system prompts were known.
func talkWithEvents(t *testing.T, name, follow string, routers int, change func(*engine.ServerConfig)) (a accuracy) {
	t.Run(name, func(t *testing.T) {
		w := newTalk(t, 4, routers, change, follow)
		if e := w.engines[0].Config(); follow == "auto" && e.EventsReplay != "" && e.EventsRestart == 0 {
			w.followed()
		}
		w.run(1, 8, 12)
		w.report("first requests")
		w.run(2, 8, 40)
		a = w.report("then")
	})
	return a
}

// A child agent's conversation begins with its parent's and has a name of its own. Whichever router it asks first, it starts at an
// engine that has its parent's cache.
func TestChildAgentStartsAtItsParentsCache(t *testing.T) {
	for _, follow := range []string{"off", "auto"} {
		t.Run("events "+follow, func(t *testing.T) {
			w := newTalk(t, 4, 3, func(c *engine.ServerConfig) { c.KVTokens, c.PrefillRate = 200_000, 20_000 }, follow)
			w.await("peers", func() bool { return !slices.ContainsFunc(w.routers, func(n *node.Node) bool { return !n.Ready() }) })
			if follow == "auto" {
				w.followed()
			}
			const children = 3
			r := rand.New(rand.NewPCG(1, 1))
			engines := map[int]bool{}
			for parent := range 12 {
				as := func(agent string) http.Header {
					h := http.Header{}
					h.Set("X-Claude-Code-Session-Id", fmt.Sprint("session-", parent))
					h.Set("X-Claude-Code-Agent-Id", agent)
					if agent != "parent" {
						h.Set("X-Claude-Code-Parent-Agent-Id", "parent")
					}
					return h
				}
				talk := []message{{"system", prose(r, 100)}}
				at := 0
				for range 3 {
					talk = append(talk, message{"user", prose(r, 150)})
					answer, a := w.askAs(as("parent"), r.IntN(len(w.routers)), talk, 20)
					talk = append(talk, message{"assistant", answer})
					at = a.engine
				}
				engines[at] = true
				for child := range children {
					task := append(slices.Clone(talk), message{"user", fmt.Sprint("child ", child, prose(r, 60))})
					held, err := w.engines[at].Cached("/v1/chat/completions", bodyOf(task, 20))
					if err != nil {
						t.Fatal(err)
					}
					if held.CachedTokens < 1000 {
						t.Fatalf("the parent's engine has only %d of %d tokens of its child's prompt", held.CachedTokens, held.PromptTokens)
					}
					_, a := w.askAs(as(fmt.Sprint("child-", child)), r.IntN(len(w.routers)), task, 20)
					if a.cached < held.CachedTokens {
						t.Errorf("child %d of parent %d found %d tokens at engine %d; its parent's engine %d had %d of %d",
							child, parent, a.cached, a.engine, at, held.CachedTokens, held.PromptTokens)
					}
				}
			}
			if len(engines) < 2 {
				t.Errorf("all parents were at engine %v, so that no child could go elsewhere", engines)
			}
		})
	}
}

// Every router stops to expect what an engine evicted within a second: those that follow the engine by its events, the last one by what these
// tell. So it is of blocks that the engine used just before, and of others. A busy machine delays some, so the median counts.
func TestEvictionIsAvoided(t *testing.T) {
	w := newTalk(t, 1, 2, func(*engine.ServerConfig) {}, "auto")
	w.followed()
	w.addRouter("off") // it does not stamp its own requests either, so the others send them
	w.await("peers", func() bool { return w.routers[2].Ready() })
	r := rand.New(rand.NewPCG(1, 1))
	filler := []message{{"user", prose(r, 100)}}
	for _, age := range []time.Duration{0, 1200 * time.Millisecond} {
		took := make([][]time.Duration, len(w.routers))
		for round := range 6 {
			prompt := []message{{"user", prose(r, 300)}}
			body := bodyOf(prompt, 1)
			w.ask(round%2, prompt, 1)
			for begun := time.Now(); time.Since(begun) < age; { // use it while it ages
				w.ask(0, filler, 1)
			}
			cached := func() int {
				at, err := w.engines[0].Cached("/v1/chat/completions", body)
				if err != nil {
					t.Fatal(err)
				}
				return at.CachedTokens
			}
			before := cached()
			var gone time.Time
			var evicted atomic.Bool
			var flood sync.WaitGroup
			flood.Go(func() {
				for !evicted.Load() {
					w.ask(0, []message{{"user", prose(r, 400)}}, 1)
				}
			})
			w.await("eviction", func() bool {
				gone = time.Now()
				evicted.Store(cached() == 0)
				return evicted.Load()
			})
			seen := make([]time.Duration, len(w.routers))
			w.await("avoidance at every router", func() bool {
				all := true
				for i := range w.routers {
					if _, c := w.candidate(i, 0, body); seen[i] == 0 && c.HeldTokens < blockTokens {
						seen[i] = time.Since(gone)
					}
					all = all && seen[i] > 0
				}
				return all
			})
			flood.Wait()
			if before == 0 {
				continue // evicted before it was looked at
			}
			for i, d := range seen {
				took[i] = append(took[i], d)
			}
		}
		for i, d := range took {
			slices.Sort(d)
			t.Logf("blocks used %v before: n%d avoids them %v after the eviction", age, i, d)
			if len(d) < 3 || d[len(d)/2] > time.Second {
				t.Errorf("n%d: want 3 evictions or more, and at most a second in the median", i)
			}
		}
	}
}
