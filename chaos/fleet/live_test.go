package fleet_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/workload"
)

const liveEnv = "GRAPEVINE_LIVE"

const liveNodes = 8

func live(t *testing.T) (full bool) {
	t.Helper()
	if os.Getenv(liveEnv) == "" {
		t.Skip("make live")
	}
	return !testing.Short()
}

var figures struct {
	mu   sync.Mutex
	rows []figure
}

type figure struct {
	test, what, got, limit string
	ok                     bool
}

func atMost(t *testing.T, what string, got, limit float64, unit string) {
	t.Helper()
	record(t, what, got, limit, unit, "<=", got <= limit)
}

func atLeast(t *testing.T, what string, got, limit float64, unit string) {
	t.Helper()
	record(t, what, got, limit, unit, ">=", got >= limit)
}

func shown(t *testing.T, what string, got float64, unit string) {
	t.Helper()
	record(t, what, got, math.NaN(), unit, "", true)
}

func record(t *testing.T, what string, got, limit float64, unit, relation string, ok bool) {
	t.Helper()
	f := figure{test: t.Name(), what: what, got: fmt.Sprintf("%.4g %s", got, unit), ok: ok}
	if !math.IsNaN(limit) {
		f.limit = fmt.Sprintf("%s %.4g %s", relation, limit, unit)
	}
	t.Logf("%s: %s %s", what, f.got, f.limit)
	if !ok {
		t.Errorf("%s is %s, want %s", what, f.got, f.limit)
	}
	figures.mu.Lock()
	figures.rows = append(figures.rows, f)
	figures.mu.Unlock()
}

func printFigures(w io.Writer) {
	figures.mu.Lock()
	defer figures.mu.Unlock()
	if len(figures.rows) == 0 {
		return
	}
	slices.SortStableFunc(figures.rows, func(a, b figure) int { return cmp.Compare(a.test, b.test) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t)
	for _, f := range figures.rows {
		verdict := ""
		switch {
		case !f.ok:
			verdict = "MISSED"
		case f.limit != "":
			verdict = "ok"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", strings.TrimPrefix(f.test, "TestLive"), f.what, f.got, f.limit, verdict)
	}
	_ = t.Flush()
}

func fastEngine() engine.ServerConfig {
	return engine.ServerConfig{
		Config: engine.Config{
			KVTokens: 16_000_000, BlockTokens: 64, MaxRunning: 256, PrefillRate: 4_000_000, ChunkTokens: 16_384, DecodeStep: 4 * time.Millisecond,
		},
		Models: []string{model}, MaxModelLen: 200_000, TokensPerChunk: 8,
	}
}

func liveFleet(t *testing.T, change func(*fleet.Config)) *fleet.Fleet {
	t.Helper()
	cfg := fleet.Config{Nodes: liveNodes, Engines: 8, Engine: fastEngine(), Seed: 1, Settings: map[string]any{"log_level": "info"}}
	cfg.Balancer.Interval = 100 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	return start(t, cfg)
}

// conversation has unique text. Not safe for concurrent use.
type conversation struct {
	id       uint64
	messages []message
	engine   string
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

const firstTokens = 4096

func newConversation(id uint64) *conversation {
	c := &conversation{id: id}
	c.say(firstTokens)
	return c
}

func (c *conversation) say(tokens int) {
	text := workload.Text(nil, c.id<<8|uint64(len(c.messages)), tokens)
	c.messages = append(c.messages, message{"user", string(text)})
}

func (c *conversation) body() []byte {
	raw, _ := json.Marshal(map[string]any{"model": model, "messages": c.messages, "max_tokens": 4})
	return raw
}

// placeHeader makes routers with placeRule ignore their knowledge, so that no other router can
// predict the engine.
const placeHeader = "X-Place"

func placeRule() []map[string]any {
	return []map[string]any{{"header": placeHeader, "strategy": "random"}}
}

func (c *conversation) send(ctx context.Context, client *http.Client, base string, anywhere bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(c.body()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if anywhere {
		req.Header.Set(placeHeader, "anywhere")
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct{ Message message }
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if len(answer.Choices) != 1 {
		return fmt.Errorf("%d choices", len(answer.Choices))
	}
	c.engine = resp.Header.Get("X-Grapevine-Backend")
	c.messages = append(c.messages, answer.Choices[0].Message)
	return nil
}

// known asks a router where the next turn would go: how many blocks it believes the last engine to
// hold, and whether it would choose that engine for them.
func (c *conversation) known(ctx context.Context, n *fleet.Node) (blocks int, follows bool, err error) {
	r, err := n.Explain(ctx, "/v1/chat/completions", nil, c.body())
	if err != nil {
		return 0, false, err
	}
	for _, candidate := range r.Candidates {
		if candidate.Backend == c.engine {
			blocks = candidate.MatchedBlocks
		}
	}
	return blocks, r.Backend == c.engine && r.Rung == "cache", nil
}

func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return math.MaxInt64
	}
	slices.Sort(v)
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

func whenFull[T any](full bool, yes, no T) T {
	if full {
		return yes
	}
	return no
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[len(v)/2]
}
