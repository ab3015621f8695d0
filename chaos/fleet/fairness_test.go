package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/workload"
	"grapevine.example/proxy/clients"
)

const (
	fairRouters, fairEngines = 3, 4
	fairPrefill              = 8000 // tokens per second of an engine
	fairPrompt               = 1000 // tokens, and no prompt shares any
	fairRate                 = fairEngines * fairPrefill / fairPrompt
)

// sender is a client: it sends so many requests per second, or has so many under way all the time.
// It wants its first tokens within a time; 0: it takes them whenever they come.
type sender struct {
	name   string
	rate   float64
	under  int
	within time.Duration
}

var (
	victim    = sender{name: "victim", rate: fairRate / 4.}
	aggressor = sender{name: "aggressor", under: 160}
	talker    = sender{name: "chat", rate: fairRate / 4.}
	batcher   = sender{name: "bulk", under: 160} // of priority batch
)

// TestLiveFairness lets clients share engines that one of them alone fills five times over: with the queue, and with requests that
// wait inside the engines. Requests enter at random routers. The bounds are far from what is measured: a busy machine is late, and a
// queue that does not divide the engines is as slow as none.
func TestLiveFairness(t *testing.T) {
	full := live(t)
	d := whenFull(full, 60*time.Second, 12*time.Second)
	with, without := map[string]any{"queue_requests": 2048, "queue_ttft": "250ms"}, map[string]any{}
	alone := shareEngines(t, without, d, victim)
	on, off := shareEngines(t, with, d, victim, aggressor), shareEngines(t, without, d, victim, aggressor)
	shown(t, "victim alone: p99 of its first tokens", 1000*alone.p99("victim"), "ms")
	shown(t, "victim beside the aggressor, with a queue", 1000*on.p99("victim"), "ms")
	shown(t, "the same without a queue", 1000*off.p99("victim"), "ms")
	shown(t, "of victim alone, with a queue", on.p99("victim")/alone.p99("victim"), "times")
	atLeast(t, "better by the queue", off.p99("victim")/on.p99("victim"), 2.5, "times")
	atLeast(t, "requests per second with a queue, of those without", 100*on.served()/off.served(), 80, "%")

	on, off = shareEngines(t, with, d, talker, batcher), shareEngines(t, without, d, talker, batcher)
	shown(t, "interactive beside batch, with a queue: p99 of its first tokens", 1000*on.p99("chat"), "ms")
	shown(t, "the same without a queue", 1000*off.p99("chat"), "ms")
	atLeast(t, "interactive, better by the queue", off.p99("chat")/on.p99("chat"), 2.5, "times")
	atLeast(t, "batch per second with a queue, of that without", 100*on.rate("bulk")/off.rate("bulk"), 50, "%")

	// Three times what the engines can do within the time.
	hasty := sender{name: "victim", rate: 3 * fairRate, within: 2 * time.Second}
	on = shareEngines(t, with, d, hasty)
	inTime := 0
	for _, first := range on.first["victim"] {
		if first <= hasty.within {
			inTime++
		}
	}
	answered := len(on.first["victim"])
	shown(t, "overloaded, each first token wanted in 2 s: refused", 100*float64(on.refused)/float64(on.refused+answered), "%")
	shown(t, "refused after", 1000*quantile(on.refusedAfter, 0.5).Seconds(), "ms")
	atLeast(t, "first tokens in time, of those answered", 100*float64(inTime)/float64(answered), 80, "%")
	atLeast(t, "answers per second, of what the engines can", 100*on.rate("victim")/fairRate, 50, "%")
}

// shared is what clients got.
type shared struct {
	mu    sync.Mutex
	took  time.Duration
	first map[string][]time.Duration // until the first token, by client

	refused      int // 429, because of the time within which the first token was wanted
	refusedAfter []time.Duration
}

var errTooLate = errors.New("the first token cannot come in time")

func (s *shared) p99(client string) float64 { return quantile(s.first[client], 0.99).Seconds() }

func (s *shared) rate(client string) float64 { return float64(len(s.first[client])) / s.took.Seconds() }

func (s *shared) served() (perSecond float64) {
	for client := range s.first {
		perSecond += s.rate(client)
	}
	return perSecond
}

// shareEngines runs a fleet for a time. What ends later does not count.
func shareEngines(t *testing.T, settings map[string]any, d time.Duration, senders ...sender) *shared {
	t.Helper()
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Engines, cfg.NoBalancer = fairRouters, fairEngines, true
		cfg.Engine.PrefillRate, cfg.Engine.ChunkTokens = fairPrefill, fairPrompt/4
		cfg.Settings["clients_file"] = fairClients(t)
		maps.Copy(cfg.Settings, settings)
	})
	defer func() { _ = f.Close() }()
	ctx, stop := context.WithTimeout(t.Context(), d+2*time.Minute)
	defer stop()
	running, end := context.WithTimeout(ctx, d)
	defer end()
	s := &shared{first: make(map[string][]time.Duration), took: d}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var ids atomic.Uint64
	var failed atomic.Pointer[error]
	one := func(c sender, random *rand.Rand) {
		first, err := firstToken(ctx, client, f.Nodes()[random.IntN(fairRouters)], c, ids.Add(1))
		late := c.within > 0 && errors.Is(err, errTooLate)
		if err != nil && !late {
			failed.Store(&err)
			return
		}
		if running.Err() != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if late {
			s.refused, s.refusedAfter = s.refused+1, append(s.refusedAfter, first)
		} else {
			s.first[c.name] = append(s.first[c.name], first)
		}
	}
	var work sync.WaitGroup
	for i, c := range senders {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		if c.rate > 0 {
			work.Go(func() {
				for sleep(running, time.Duration(random.ExpFloat64()/c.rate*float64(time.Second))) == nil {
					own := rand.New(rand.NewPCG(random.Uint64(), 1))
					work.Go(func() { one(c, own) })
				}
			})
		}
		for range c.under {
			own := rand.New(rand.NewPCG(random.Uint64(), 2))
			work.Go(func() {
				for running.Err() == nil {
					one(c, own)
				}
			})
		}
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		t.Errorf("%v: a request failed: %v", senders, *err)
	}
	for _, n := range f.Nodes() {
		awaitNoRequests(ctx, t, n)
	}
	return s
}

// fairClients writes a clients file, whose keys are the names.
func fairClients(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("anonymous: refuse\nclients:\n")
	for _, c := range []sender{victim, aggressor, talker, batcher} {
		priority := clients.Interactive
		if c.name == batcher.name {
			priority = clients.Batch
		}
		fmt.Fprintf(&text, "  - {name: %s, key_sha256: %x, priority: %s}\n", c.name, clients.HashKey([]byte(c.name)), priority)
	}
	file := filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// firstToken streams an answer to its end, and returns when its first event came, or errTooLate and when that was said.
func firstToken(ctx context.Context, client *http.Client, n *fleet.Node, c sender, id uint64) (first time.Duration, err error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": 8, "ignore_eos": true,
		"messages": []message{{"user", string(workload.Text(nil, id, fairPrompt))}},
	})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.name)
	if c.within > 0 {
		req.Header.Set("X-Llm-D-Slo-Ttft-Ms", fmt.Sprint(c.within.Milliseconds()))
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "" {
			return time.Since(began), errTooLate
		}
		return 0, fmt.Errorf("%s: %s", resp.Status, text)
	}
	lines, ended := bufio.NewScanner(resp.Body), false
	for lines.Scan() {
		if first == 0 && bytes.Contains(lines.Bytes(), []byte(`"content"`)) {
			first = time.Since(began)
		}
		ended = ended || bytes.HasSuffix(lines.Bytes(), []byte("[DONE]"))
	}
	if first == 0 || !ended {
		return 0, errors.Join(errors.New("an answer without a first token or an end"), lines.Err())
	}
	return first, nil
}
