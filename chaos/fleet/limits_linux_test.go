package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/proxy/clients"
)

const (
	limitedByTokens = 70 // clients
	limitedInFlight = 30
	tokensPerMinute = 1500
	mostInFlight    = 4
	outputTokens    = 30 // of a request
	// reported is how old peers' reports may be: far more than is measured, on a busy machine.
	reported = time.Second
)

// TestLiveLimits holds a hundred clients that come in at random routers to their limits, while a router is killed and comes back, and
// while the fleet is divided. What clients use is counted where it is used, at the engines.
func TestLiveLimits(t *testing.T) {
	full := live(t)
	if !isolated(t, true) {
		return
	}
	names, file := limitedClients(t)
	used := &clientsUse{clients: make(map[string]*clientUse), seen: make(map[string]bool)}
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Switched = true
		cfg.Settings["clients_file"] = file
		cfg.Engine.DecodeStep, cfg.Engine.Watch = 20*time.Millisecond, used.visit
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: f.DialClient, MaxIdleConnsPerHost: 32}}
	defer client.CloseIdleConnections()

	cost, status, err := askLimited(ctx, client, f.Nodes()[0], "free", "free-0")
	if err != nil || status != http.StatusOK || cost <= outputTokens {
		t.Fatalf("a request costs %v tokens, status %d: %v", cost, status, err)
	}
	used.begin(float64(cost))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	loadCtx, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	for worker := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, worker))
		working.Go(func() {
			for i := 0; loadCtx.Err() == nil; i++ {
				name, n := names[random.IntN(len(names))], f.Nodes()[random.IntN(liveNodes)]
				_, status, err := askLimited(loadCtx, client, n, name, fmt.Sprintf("%s-%d-%d", name, worker, i))
				used.answered(name, status)
				if err != nil || status != http.StatusOK { // as clients do
					_ = sleep(loadCtx, 250*time.Millisecond)
				}
			}
		})
	}
	defer working.Wait()
	defer stop()
	for began := time.Now(); !used.allRefused(names); {
		err := sleep(ctx, 50*time.Millisecond)
		if over := used.most(); err != nil || over > allowedBeyond(cost) || time.Since(began) > 3*time.Minute {
			t.Fatalf("some clients are never refused; one is %.0f tokens beyond its limit of %d", over, tokensPerMinute)
		}
	}
	part := whenFull(full, 30*time.Second, 6*time.Second)
	pass := func(what string, d time.Duration) {
		t.Helper()
		if err := sleep(ctx, d); err != nil {
			t.Fatal(err)
		}
		used.report(t, what, cost)
	}
	pass("all routers", part)
	victim := f.Node("node-3")
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	pass("after a kill", part)
	comeBack(ctx, t, victim)
	pass("after its return", part)
	if err := f.Partition(fleet.Names("node", liveNodes)[:4], fleet.Names("node", liveNodes)[4:]); err != nil {
		t.Fatal(err)
	}
	pass("divided", 2*part)
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitMesh(ctx); err != nil {
		t.Fatal(err)
	}
	pass("after healing", part)
	stop()
	working.Wait()
	atLeast(t, "tokens admitted, of what the limits allow", 100*used.admittedOf(names[:limitedByTokens]), 50, "%")
	for _, n := range f.Nodes() {
		awaitNoRequests(ctx, t, n)
	}
}

// limitedClients writes a clients file, whose keys are the names.
func limitedClients(t *testing.T) (names []string, file string) {
	t.Helper()
	var text strings.Builder
	text.WriteString("anonymous: refuse\nclients:\n")
	add := func(name, limits string) {
		fmt.Fprintf(&text, "  - {name: %s, key_sha256: %x%s}\n", name, clients.HashKey([]byte(name)), limits)
	}
	for i := range limitedByTokens + limitedInFlight {
		name, limits := fmt.Sprint("c", i), fmt.Sprintf(", tokens_per_minute: %d", tokensPerMinute)
		if i >= limitedByTokens {
			limits = fmt.Sprintf(", in_flight: %d", mostInFlight)
		}
		add(name, limits)
		names = append(names, name)
	}
	add("free", "")
	file = filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return names, file
}

// askLimited returns the tokens that the engine counts.
func askLimited(ctx context.Context, client *http.Client, n *fleet.Node, name, id string) (tokens, status int, err error) {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":"a prompt of some words"}]}`, model, outputTokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Authorization", "Bearer "+name)
	req.Header.Set("X-Request-Id", id)
	res, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return 0, res.StatusCode, err
	}
	var answer struct {
		Usage struct {
			Total int `json:"total_tokens"`
		}
	}
	err = json.Unmarshal(text, &answer)
	return answer.Usage.Total, res.StatusCode, err
}

// clientsUse counts at the engines.
type clientsUse struct {
	mu       sync.Mutex
	cost     float64 // of a request; 0: nothing is counted yet
	began    time.Time
	clients  map[string]*clientUse
	seen     map[string]bool // ids of requests: a router may send one again
	overMost struct{ tokens, requests float64 }
}

type clientUse struct {
	level, admitted float64 // tokens
	at              time.Time
	inFlight        int
	ended           []time.Time // lately
	refused         int
}

func (u *clientsUse) begin(cost float64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cost, u.began = cost, time.Now()
}

func (u *clientsUse) of(name string) *clientUse {
	if u.clients[name] == nil {
		u.clients[name] = new(clientUse)
	}
	return u.clients[name]
}

func (u *clientsUse) visit(v engine.Visit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name, _, _ := strings.Cut(v.ID, "-")
	if u.cost == 0 || name == "free" || name == "" {
		return
	}
	c := u.of(name)
	if !v.Ended.IsZero() {
		c.inFlight--
		c.ended = append(c.ended, v.Ended)
		return
	}
	c.level, c.at = max(0, c.level-tokensPerMinute*v.Began.Sub(c.at).Minutes()), v.Began
	c.inFlight++
	if !u.seen[v.ID] {
		u.seen[v.ID] = true
		c.level += u.cost
		c.admitted += u.cost
	}
	c.ended = slices.DeleteFunc(c.ended, func(at time.Time) bool { return v.Began.Sub(at) > 2*reported })
	if over := c.inFlight - mostInFlight - len(c.ended); c.limitedInFlight(name) {
		u.overMost.requests = max(u.overMost.requests, float64(over))
	} else {
		u.overMost.tokens = max(u.overMost.tokens, c.level-tokensPerMinute)
	}
}

func (*clientUse) limitedInFlight(name string) bool {
	var i int
	_, err := fmt.Sscanf(name, "c%d", &i)
	return err == nil && i >= limitedByTokens
}

func (u *clientsUse) answered(name string, status int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if status == http.StatusTooManyRequests {
		u.of(name).refused++
	}
}

func (u *clientsUse) allRefused(names []string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool { return u.of(name).refused == 0 })
}

// allowedBeyond is the bound of proxy/clients/DESIGN.md, in tokens.
func allowedBeyond(cost int) float64 {
	return tokensPerMinute*reported.Minutes()*liveNodes + float64(liveNodes*cost)
}

// most is what any client was beyond its limit since the last report.
func (u *clientsUse) most() float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.overMost.tokens
}

// report compares the most that any client was over its limit since the last report with the bound.
func (u *clientsUse) report(t *testing.T, what string, cost int) {
	t.Helper()
	u.mu.Lock()
	over := u.overMost
	u.overMost.tokens, u.overMost.requests = 0, 0
	u.mu.Unlock()
	atMost(t, what+": tokens beyond a limit of "+fmt.Sprint(tokensPerMinute), over.tokens, allowedBeyond(cost), "")
	atMost(t, what+": requests beyond a limit of "+fmt.Sprint(mostInFlight)+" and those that just ended", over.requests, liveNodes, "")
}

func (u *clientsUse) admittedOf(names []string) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	admitted := 0.
	for _, name := range names {
		admitted += u.of(name).admitted
	}
	return admitted / (float64(len(names)) * tokensPerMinute * (1 + time.Since(u.began).Minutes()))
}

// awaitNoRequests waits until a router counts no request of any client, here or elsewhere.
func awaitNoRequests(ctx context.Context, t *testing.T, n *fleet.Node) {
	t.Helper()
	for {
		list, err := n.Clients(ctx)
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, c := range list.Clients {
			left += c.Requests
		}
		if left == 0 {
			return
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			t.Fatalf("%s still counts %d requests in flight", n.Name(), left)
		}
	}
}
