package node

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/proxy/clients"
)

// A node that joins asks for traffic only when it grants its part of the limits; before, it was alone.
func TestReadyNodeGrantsItsPart(t *testing.T) {
	first := startNode(t, fleetConfig("n0", nil, newFakeEngine(t, "m").URL))
	for i := range 5 {
		cfg := fleetConfig(fmt.Sprint("n", i+1), []string{first.GossipAddr()})
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		announce := n.ready.announce
		var granted clients.Fleet
		n.ready.announce = func(ready bool) {
			if ready {
				granted = n.meter.Fleet()
			}
			announce(ready)
		}
		n.raftTimers = patientRaft
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stopNode(t, n) })
		eventually(t, "the node is ready", n.Ready)
		n.ready.mu.Lock()
		if granted.Nodes < 2 {
			t.Errorf("n%d became ready as one of %d nodes", i+1, granted.Nodes)
		}
		n.ready.mu.Unlock()
	}
}

// Eight real nodes hold clients that come in anywhere to limits that each node alone would grant eight times, and all see the same use.
func TestLimitsHoldOverTheFleet(t *testing.T) {
	const nodes, users, limit, perUser = 8, 4, 1000, 150
	engine := newFakeEngine(t, "m")
	text := "anonymous: refuse\nclients:\n"
	for i := range users {
		hash := clients.HashKey(fmt.Appendf(nil, "key%d", i))
		text += fmt.Sprintf("  - {name: c%d, key_sha256: %s, tokens_per_minute: %d}\n", i, hex.EncodeToString(hash[:]), limit)
	}
	file := filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var fleet []*Node
	var join []string
	for i := range nodes {
		cfg := fleetConfig(fmt.Sprint("n", i), join, engine.URL)
		cfg.ClientsFile = file
		fleet = append(fleet, startNode(t, cfg))
		join = []string{fleet[0].GossipAddr()}
	}
	awaitFleet(t, fleet...)
	eventually(t, "every node counts all of them", func() bool {
		for _, n := range fleet {
			if f := n.heardFleet(); f.Heard != nodes || f.Nodes != nodes {
				return false
			}
		}
		return true
	})
	body := strings.TrimSuffix(chatBody("m", "hello"), "}") + `,"max_tokens":1}`
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	var admitted, refused [users]int
	var working sync.WaitGroup
	began := time.Now()
	for worker := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, worker))
		working.Go(func() {
			for range users * perUser / 8 {
				user, n := random.IntN(users), fleet[random.IntN(nodes)]
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", fmt.Sprint("Bearer key", user))
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = res.Body.Close()
				mu.Lock()
				switch {
				case res.StatusCode == 200:
					admitted[user]++
				case res.StatusCode == 429 && res.Header.Get("Retry-After") != "" && res.Header.Get("X-Ratelimit-Limit-Tokens") == "1000":
					refused[user]++
				default:
					t.Errorf("status %d, headers %v", res.StatusCode, res.Header)
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	took := time.Since(began)
	eventually(t, "all nodes see the same use", func() bool {
		for i := range users {
			least, most := int64(limit*nodes), int64(0)
			for _, n := range fleet {
				s := n.meter.Standing(n.clients.book.Clients[i], 0, clients.Admitted, n.meter.Now()) // each node has its own list
				if s.InFlight != 0 {
					return false
				}
				least, most = min(least, s.TokensUsed), max(most, s.TokensUsed)
			}
			if most == 0 && time.Since(began) < time.Minute || most-least > 200 { // the leak of some seconds
				return false
			}
		}
		return true
	})
	cost, staleness := float64(len(body)/4+1), time.Second // as the engine counts; far more than is measured
	counted := map[string]float64{}
	for _, n := range fleet {
		for series, v := range scrape(t, n) {
			counted[series] += v
		}
	}
	for i := range users {
		if u := fleet[i].Clients().Clients[i]; u.Name != fmt.Sprint("c", i) || u.TokensUsed == 0 && took < time.Minute {
			t.Errorf("%+v", u)
		}
		requests, limited := counted[fmt.Sprintf(`grapevine_client_requests_total{client="c%d"}`, i)], counted[fmt.Sprintf(`grapevine_client_refused_total{client="c%d",reason="tokens"}`, i)]
		if int(requests) != admitted[i] || int(limited) != refused[i] {
			t.Errorf("c%d: metrics count %v admitted, %v refused", i, requests, limited)
		}
		bound := limit + limit*(took+nodes*staleness).Minutes() + nodes*cost
		t.Logf("c%d: %d admitted with %.0f tokens, %d refused in %v", i, admitted[i], float64(admitted[i])*cost, refused[i], took.Round(time.Millisecond))
		if got := float64(admitted[i]) * cost; got > bound || refused[i] == 0 {
			t.Errorf("c%d: %.0f tokens admitted, want at most %.0f; %d requests refused", i, got, bound, refused[i])
		}
	}
}
