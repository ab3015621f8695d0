package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/engine"
	"grapevine/node"
	"grapevine/node/config"
)

// talk is conversations of many turns and branches behind shared system prompts, over routers and engines in this process.
type talk struct {
	t       *testing.T
	engines []*engine.Server
	routers []*node.Node
	client  *http.Client

	mu sync.Mutex // guards counts
	counts
}

type counts struct {
	asked   int
	prompt  int // tokens
	missed  int // tokens by which predictions were wrong, of either sign
	within  int // requests predicted within one block
	exact   int // requests whose prediction the router called exact
	exactIn int // of these, within one block
	cached  int // tokens
	worst   []string
}

func newTalk(t *testing.T, engines, routers int, change func(*engine.ServerConfig), follow string) *talk {
	w := &talk{t: t, client: &http.Client{Timeout: time.Minute}}
	cfg := config.Default()
	cfg.Secret, cfg.Gossip, cfg.Events, cfg.ResponseHeaders = "the secret of a fleet that is a test", "127.0.0.1:0", follow, "all"
	cfg.Listen, cfg.Admin, cfg.GossipInsecure = "127.0.0.1:0", "127.0.0.1:0", true
	cfg.MetricsInterval, cfg.SlowStart = time.Second, 0
	cfg.Log = zerolog.Nop()
	for i := range engines {
		c := engine.ServerConfig{Config: engine.Config{KVTokens: 48_000, PrefillRate: 400_000, DecodeStep: 200 * time.Microsecond, BlockTokens: 16}}
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
		cfg.Backends = append(cfg.Backends, config.Backend{URL: "http://" + s.Addr(), Name: fmt.Sprint("e", i)})
	}
	for i := range routers {
		cfg.NodeName = fmt.Sprint("n", i)
		if i > 0 {
			cfg.Join = []string{w.routers[0].GossipAddr()}
		}
		n, err := node.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_ = n.Stop(ctx)
		})
		w.routers = append(w.routers, n)
	}
	return w
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

func (w *talk) ask(n *node.Node, messages []message, output int) (answer string) {
	body, _ := json.Marshal(map[string]any{"model": "emulated", "messages": messages, "max_tokens": output})
	receipt, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, body)
	if err != nil {
		w.t.Error(err)
		return ""
	}
	resp, err := w.client.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return ""
	}
	text, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	var out struct {
		Choices []struct{ Message message }
		Usage   struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &out); err != nil || len(out.Choices) == 0 {
		w.t.Errorf("%d: %s", resp.StatusCode, text)
		return ""
	}
	chosen := resp.Header.Get("X-Grapevine-Backend")
	for _, c := range receipt.Candidates {
		if c.Backend != chosen {
			continue
		}
		off := int(c.HeldTokens) - out.Usage.Details.Cached
		w.mu.Lock()
		w.asked++
		w.prompt += out.Usage.Prompt
		w.cached += out.Usage.Details.Cached
		w.missed += max(off, -off)
		good := off >= -16 && off <= 16
		if good {
			w.within++
		}
		if c.Exact {
			w.exact++
			if good {
				w.exactIn++
			} else if len(w.worst) < 5 {
				w.worst = append(w.worst, fmt.Sprintf("%s at %s: %d held, %d cached, %d prompt tokens, %d messages", n.Name(), chosen, int(c.HeldTokens), out.Usage.Details.Cached, out.Usage.Prompt, len(messages)))
			}
		}
		w.mu.Unlock()
	}
	return out.Choices[0].Message.Content
}

// run plays conversations at the same time, each request at a random router.
func (w *talk) run(seed uint64, clients, turns int) {
	var work sync.WaitGroup
	for c := range clients {
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			system := message{"system", prose(rand.New(rand.NewPCG(seed, uint64(c%3+1000))), 200)}
			talk := []message{system}
			for range turns {
				if r.IntN(6) == 0 || len(talk) > 14 {
					talk = []message{system} // a new conversation
				} else if len(talk) > 4 && r.IntN(6) == 0 {
					talk = talk[:len(talk)-2] // another question instead of the last one
				}
				talk = append(talk, message{"user", prose(r, 20+r.IntN(150))})
				answer := w.ask(w.routers[r.IntN(len(w.routers))], talk, 10+r.IntN(60))
				if answer == "" {
					return
				}
				talk = append(talk, message{"assistant", answer})
			}
		})
	}
	work.Wait()
}

// report logs and forgets the counts. It returns the error as a share of the prompt tokens, and the share of the exact predictions
// within one block.
func (w *talk) report(name string) (wrong, exactIn float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong, exactIn = float64(w.missed)/float64(max(w.prompt, 1)), float64(w.exactIn)/float64(max(w.exact, 1))
	w.t.Logf("%-15s %4d requests, %.1f %% of prompt tokens cached, error %.2f %%, within a block %.1f %%; exact %.0f %%, of these within a block %.2f %%", name,
		w.asked, 100*float64(w.cached)/float64(max(w.prompt, 1)), 100*wrong, 100*float64(w.within)/float64(max(w.asked, 1)),
		100*float64(w.exact)/float64(max(w.asked, 1)), 100*exactIn)
	for _, s := range w.worst {
		w.t.Log("   ", s)
	}
	w.counts = counts{}
	return wrong, exactIn
}

// Predictions must be much better with events than without, whatever befalls the stream, and exact where a router says so.
func TestCacheEvents(t *testing.T) {
	for _, c := range []struct {
		name    string
		follow  string
		nodes   int
		change  func(*engine.ServerConfig)
		error   float64 // at most, of the prompt tokens
		exactIn float64 // least share of the exact predictions within one block
	}{
		{"prediction", "off", 3, func(*engine.ServerConfig) {}, 1, 0},
		{"one router", "auto", 1, func(*engine.ServerConfig) {}, 0.05, 0.95},
		{"three routers", "auto", 3, func(*engine.ServerConfig) {}, 0.1, 0.85},
		{"SGLang", "auto", 3, func(c *engine.ServerConfig) { c.MetricsStyle = engine.StyleSGLang }, 0.15, 0.6},
		{"5 % lost", "auto", 3, func(c *engine.ServerConfig) { c.EventsLoss = 5 }, 0.15, 0.6},
		{"20 % lost, no replay", "auto", 3, func(c *engine.ServerConfig) { c.EventsLoss, c.EventsReplay = 20, "" }, 1, 0},
		{"restarts", "auto", 3, func(c *engine.ServerConfig) { c.EventsRestart = 1500 }, 0.15, 0.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTalk(t, 4, c.nodes, c.change, c.follow)
			if c.exactIn > 0 && c.name != "restarts" {
				w.followed()
			}
			w.run(1, 8, 12)
			w.report("first requests")
			w.run(2, 8, 25)
			wrong, in := w.report("then")
			if wrong > c.error || in < c.exactIn {
				t.Errorf("error of %.3f, %.3f of the exact predictions within one block; want at most %.2f and at least %.2f", wrong, in, c.error, c.exactIn)
			}
		})
	}
}
