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
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
	"grapevine.example/proxy/clients"
)

const (
	fairPrefill = 8000 // tokens per second of an engine
	// fairTTFT is about half a mean prefill: with less, engines rest while the next request is on its way; with more, a request waits in them.
	fairTTFT = 750 * time.Millisecond
)

// fairLoad is conversations whose prefills take up to six seconds, so that what the machine adds is small, on so many engines that they
// answer a thousand requests in a minute. Lengths are divided by short, and so are all times but the machine's.
type fairLoad struct {
	engines  int
	short    float64
	lasts    time.Duration
	fills    time.Duration // the queue and what engines hold
	users    int           // of the client that fills the engines: always under way
	sessions float64       // of the other one, per second
}

func newFairLoad(engines int, short float64, lasts, fills time.Duration) fairLoad {
	// A conversation's prefill takes 1.3 s. The other client needs a quarter of the engines.
	return fairLoad{engines, short, lasts, fills, 40 * engines, float64(engines) / 4 / 1.3 * short}
}

// conversations are so many for each second, or of users who never rest.
func (l *fairLoad) conversations(c sender) *workload.Sessions {
	of := func(points ...workload.Point) workload.CDF {
		for i := range points {
			points[i].V = max(1, math.Round(points[i].V/l.short)) + float64(i)
		}
		return points
	}
	w := &workload.Sessions{
		Label: "conversations", Rate: l.sessions, Continue: 0.6, MaxTurns: 5, Think: time.Duration(2 / l.short * float64(time.Second)),
		SharedTokens: int(1024 / l.short), Pool: 4, Suffix: int(256 / l.short), BlockTokens: 64, Duration: l.lasts,
		Prompt: of(workload.Point{V: 256}, workload.Point{V: 4000, P: .35}, workload.Point{V: 12000, P: .75}, workload.Point{V: 30000, P: .99}, workload.Point{V: 48000, P: 1}),
		Output: of(workload.Point{V: 4}, workload.Point{V: 16, P: .5}, workload.Point{V: 64, P: 1}),
	}
	if c.fills {
		w.Users = l.users
	}
	return w
}

// sender is a client that holds conversations. One that fills asks for more than the engines can do.
type sender struct {
	name  string
	fills bool
}

var (
	victim    = sender{"victim", false}
	aggressor = sender{"aggressor", true}
	talker    = sender{"chat", false}
	batcher   = sender{"bulk", true} // of priority batch
)

// TestLiveFairness lets clients share engines that one of them alone fills: with the queue, and with requests that wait inside the
// engines. Requests enter at random routers. What is compared was measured in the same minutes on the same machine. If that has too little
// time for the senders themselves, what they see is not the queue's doing, and nothing is judged.
func TestLiveFairness(t *testing.T) {
	full := live(t)
	l := whenFull(full, newFairLoad(16, 1, 110*time.Second, 50*time.Second), newFairLoad(8, 4, 27*time.Second, 13*time.Second))
	for _, routers := range whenFull(full, []int{1, 3}, []int{3}) {
		t.Run(fmt.Sprint(routers), func(t *testing.T) { l.compare(t, routers) })
	}
}

func (l *fairLoad) compare(t *testing.T, routers int) {
	ttft := time.Duration(float64(fairTTFT) / l.short)
	with, without := map[string]any{"queue_requests": 2048, "queue_timeout": "5m", "queue_ttft": ttft.String()}, map[string]any{}
	alone := l.play(t, routers, without, victim)
	on, off := l.play(t, routers, with, victim, aggressor), l.play(t, routers, without, victim, aggressor)
	chatOn, chatOff := l.play(t, routers, with, talker, batcher), l.play(t, routers, without, talker, batcher)
	late := 0.
	for _, s := range []*shared{alone, on, off, chatOn, chatOff} {
		late = max(late, s.late)
	}
	shown(t, "requests were sent late by, p99", late, "s")
	shown(t, "victim alone: p99 of its first tokens", alone.p99("victim"), "s")
	if late > lateMost*alone.p99("victim") {
		t.Skipf("the machine is too busy to judge by: requests were sent %.2f s late", late)
	}
	for _, s := range []*shared{alone, on, off, chatOn, chatOff} {
		for _, failure := range s.failed {
			t.Error(failure)
		}
	}
	shown(t, "victim beside the aggressor, with a queue", on.p99("victim"), "s")
	shown(t, "the same without a queue", off.p99("victim"), "s")
	shown(t, "of victim alone, with a queue", on.p99("victim")/alone.p99("victim"), "times")
	atLeast(t, "better by the queue", off.p99("victim")/on.p99("victim"), 2.5, "times")
	atLeast(t, "prompt tokens per second with a queue, of those without", 100*on.served()/off.served(), 80, "%")
	shown(t, "hits with a queue", 100*on.hits("victim", "aggressor"), "%")
	shown(t, "hits without", 100*off.hits("victim", "aggressor"), "%")
	shown(t, "hits of the victim, with", 100*on.hits("victim"), "%")
	shown(t, "hits of the victim, without", 100*off.hits("victim"), "%")

	shown(t, "interactive beside batch, with a queue: p99 of its first tokens", chatOn.p99("chat"), "s")
	shown(t, "the same without a queue, interactive", chatOff.p99("chat"), "s")
	atLeast(t, "interactive, better by the queue", chatOff.p99("chat")/chatOn.p99("chat"), 2.5, "times")
	atLeast(t, "batch per second with a queue, of that without", 100*chatOn.rate("bulk")/chatOff.rate("bulk"), 50, "%")
	// Interactive clients get answers sooner and so ask more; batch loses the work that they gain.
	shown(t, "interactive, the same", 100*chatOn.rate("chat")/chatOff.rate("chat"), "%")
	shown(t, "both", 100*chatOn.served()/chatOff.served(), "%")
}

// lateMost is how late requests may be sent, of what is measured.
const lateMost = 0.2

// shared is what clients got.
type shared struct {
	mu             sync.Mutex
	took           time.Duration
	first          map[string][]time.Duration // until the first token, by client
	tokens, cached map[string]int             // of the prompts of requests that ended in time, by client
	late           float64                    // p99 of how late the first sender's requests were sent; seconds
	failed         []string
}

func (s *shared) p99(client string) float64 { return quantile(s.first[client], 0.99).Seconds() }

func (s *shared) rate(client string) float64 { return float64(s.tokens[client]) / s.took.Seconds() }

func (s *shared) served() (perSecond float64) {
	for client := range s.tokens {
		perSecond += s.rate(client)
	}
	return perSecond
}

// hits is the share of the clients' prompt tokens that engines had cached.
func (s *shared) hits(clients ...string) float64 {
	tokens, cached := 0, 0
	for _, c := range clients {
		tokens, cached = tokens+s.tokens[c], cached+s.cached[c]
	}
	return float64(cached) / float64(tokens)
}

// play runs a fleet for a time, and then until the requests of the first sender have ended; those of the others then end early.
// Requests that came while the queue filled do not count, and of those that end after the time only the first sender's first tokens.
func (l *fairLoad) play(t *testing.T, routers int, settings map[string]any, senders ...sender) *shared {
	t.Helper()
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Engines, cfg.NoBalancer = routers, l.engines, true
		cfg.Engine.PrefillRate, cfg.Engine.ChunkTokens, cfg.Engine.DecodeStep = fairPrefill, int(512/l.short), time.Duration(20/l.short*float64(time.Millisecond))
		cfg.Settings["clients_file"] = fairClients(t)
		maps.Copy(cfg.Settings, settings)
	})
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), l.lasts+5*time.Minute)
	defer cancel()
	others, end := context.WithCancel(ctx)
	defer end()
	s := &shared{first: make(map[string][]time.Duration), tokens: make(map[string]int), cached: make(map[string]int), took: l.lasts - l.fills}
	var targets []string
	for _, n := range f.Nodes() {
		targets = append(targets, "http://"+n.Addr())
	}
	var playing sync.WaitGroup
	for i, c := range senders {
		ctx, duration := ctx, l.lasts
		if i > 0 {
			ctx, duration = others, time.Hour
		}
		src, err := l.conversations(c).Source(workload.Options{Seed: uint64(7 + i), Duration: duration})
		if err != nil {
			t.Fatal(err)
		}
		observe := func(e replay.Ended) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if e.At < l.fills || e.TTFT < 0 {
				return
			}
			if e.At < l.lasts {
				s.first[c.name] = append(s.first[c.name], e.TTFT)
			}
			if e.End < l.lasts {
				s.tokens[c.name] += e.PromptTokens
				s.cached[c.name] += max(e.CachedTokens, 0)
			}
		}
		playing.Go(func() {
			res, err := replay.Run(ctx, replay.Config{Targets: targets, Model: model, APIKey: c.name, Seed: uint64(i), Observe: observe}, src)
			if i == 0 {
				end()
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if i == 0 { // the others begin with all their conversations at once
				s.late = res.Live.StartDelay.P99 / 1000
			}
			if err != nil && ctx.Err() == nil || len(res.Live.Errors) > 0 {
				s.failed = append(s.failed, fmt.Sprintf("%s of %d: %v, %v %v", c.name, len(senders), err, res.Live.Errors, res.Live.Sample))
			}
			t.Logf("%s of %d: %d requests, p50 %.3f s, p99 %.3f s, sent late by p99 %.1f ms", c.name, len(senders), len(s.first[c.name]),
				quantile(s.first[c.name], 0.5).Seconds(), s.p99(c.name), res.Live.StartDelay.P99)
		})
	}
	playing.Wait()
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

const (
	hastyRouters, hastyEngines = 3, 4
	hastyPrompt                = 1000 // tokens, and no prompt shares any
	hastyRate                  = hastyEngines * fairPrefill / hastyPrompt
	hastyWithin                = 2 * time.Second
)

// TestLiveDeadlines sends three times what the engines can do, and wants each first token within a time. The bounds are far from what
// is measured: a busy machine is late.
func TestLiveDeadlines(t *testing.T) {
	full := live(t)
	d := whenFull(full, 60*time.Second, 12*time.Second)
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Engines, cfg.NoBalancer = hastyRouters, hastyEngines, true
		cfg.Engine.PrefillRate, cfg.Engine.ChunkTokens = fairPrefill, hastyPrompt/4
		maps.Copy(cfg.Settings, map[string]any{"queue_requests": 2048, "queue_ttft": "250ms"})
	})
	defer func() { _ = f.Close() }()
	ctx, stop := context.WithTimeout(t.Context(), d+2*time.Minute)
	defer stop()
	running, end := context.WithTimeout(ctx, d)
	defer end()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var refusedAfter, first []time.Duration
	var work sync.WaitGroup
	random := rand.New(rand.NewPCG(7, 0))
	for id := uint64(0); sleep(running, time.Duration(random.ExpFloat64()/(3*hastyRate)*float64(time.Second))) == nil; id++ {
		n := f.Nodes()[random.IntN(hastyRouters)]
		work.Go(func() {
			took, err := firstToken(ctx, client, n, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && !errors.Is(err, errTooLate):
				t.Errorf("a request failed: %v", err)
			case running.Err() != nil: // what ends later does not count
			case err != nil:
				refusedAfter = append(refusedAfter, took)
			default:
				first = append(first, took)
			}
		})
	}
	work.Wait()
	inTime := 0
	for _, took := range first {
		if took <= hastyWithin {
			inTime++
		}
	}
	shown(t, "overloaded, each first token wanted in 2 s: refused", 100*float64(len(refusedAfter))/float64(len(refusedAfter)+len(first)), "%")
	shown(t, "refused after", 1000*quantile(refusedAfter, 0.5).Seconds(), "ms")
	atLeast(t, "first tokens in time, of those answered", 100*float64(inTime)/float64(len(first)), 80, "%")
	atLeast(t, "answers per second, of what the engines can", 100*float64(len(first))/d.Seconds()/hastyRate, 50, "%")
}

var errTooLate = errors.New("the first token cannot come in time")

// firstToken streams an answer to its end, and returns when its first event came, or errTooLate and when that was said.
func firstToken(ctx context.Context, client *http.Client, n *fleet.Node, id uint64) (first time.Duration, err error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": 8, "ignore_eos": true,
		"messages": []message{{"user", string(workload.Text(nil, id, hastyPrompt))}},
	})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Llm-D-Slo-Ttft-Ms", fmt.Sprint(hastyWithin.Milliseconds()))
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
