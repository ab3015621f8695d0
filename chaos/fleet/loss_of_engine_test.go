package fleet_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/node/admin"
)

// engineProcess is an emulated engine that can be killed. Not safe for concurrent use.
type engineProcess struct {
	t    *testing.T
	addr string
	cmd  *exec.Cmd
}

func newEngineProcess(t *testing.T) *engineProcess {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &engineProcess{t: t, addr: ln.Addr().String()}
	_ = ln.Close()
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *engineProcess) start() {
	p.t.Helper()
	p.cmd = exec.Command(lab(p.t), "engine", "--listen", p.addr, "--model", model, "--kv-tokens", "16000000", "--block-tokens", "64",
		"--max-running", "256", "--prefill-rate", "4000000", "--chunk", "16384", "--decode-step", "4ms", "--tokens-per-chunk", "8", "--log-level", "error")
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *engineProcess) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // reports the kill
	p.cmd = nil
}

func finished(ctx context.Context, url string) (total float64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		if line := in.Text(); strings.HasPrefix(line, "vllm:request_success_total{") {
			v, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			total += v
		}
	}
	return total
}

type sighting struct {
	mu sync.Mutex
	at map[string]time.Time
}

func watchFor(ctx context.Context, f *fleet.Fleet, engine string, wanted ...string) (last time.Time, missing []string) {
	s := &sighting{at: make(map[string]time.Time)}
	var wg sync.WaitGroup
	for _, n := range f.Nodes() {
		wg.Go(func() {
			for {
				state := stateAt(ctx, n, engine)
				for _, w := range wanted {
					if state == w {
						s.mu.Lock()
						s.at[n.Name()] = time.Now()
						s.mu.Unlock()
						return
					}
				}
				if sleep(ctx, 50*time.Millisecond) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, n := range f.Nodes() {
		at, ok := s.at[n.Name()]
		if !ok {
			missing = append(missing, n.Name())
		}
		if at.After(last) {
			last = at
		}
	}
	return last, missing
}

func stateAt(ctx context.Context, n *fleet.Node, engine string) string {
	list, err := n.Backends(ctx)
	if err != nil {
		return ""
	}
	for _, b := range list.Backends {
		if b.Name == engine {
			return b.State
		}
	}
	return ""
}

func join(ctx context.Context, t *testing.T, f *fleet.Fleet, name, url string) {
	t.Helper()
	client := f.Nodes()[0]
	if _, err := client.AddBackends(ctx, []admin.NewBackend{{Name: name, URL: url, Models: []string{model}}}, false); err != nil {
		t.Fatal(err)
	}
	if _, missing := watchFor(ctx, f, name, "active"); len(missing) > 0 {
		t.Fatalf("%v never heard of %s", missing, name)
	}
}

func TestLiveEngineDies(t *testing.T) {
	full := live(t)
	f := liveFleet(t, rulesOf)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const name = "mortal"
	victim := newEngineProcess(t)
	url := "http://" + victim.addr
	waitAnswers(ctx, t, url)
	join(ctx, t, f, name, url)

	// The first time covers its slow start; then come dead, back, and warm.
	warm, dead, back := whenFull(full, 40*time.Second, 15*time.Second), 8*time.Second, whenFull(full, 50*time.Second, 15*time.Second)
	var killed, gone atomic.Int64
	load := startTraffic(ctx, t, f, trafficConfig{rate: whenFull(full, 10.0, 5), seed: 5, length: warm + dead + back, excuse: func(e replay.Ended) bool {
		began, over := time.Duration(killed.Load()), time.Duration(gone.Load())
		// Answers that had begun at the engine break off, even before their first token.
		return began > 0 && (e.TTFT >= 0 || e.Class == replay.InStream) && e.End >= began && (over == 0 || e.Sent <= over)
	}})
	at := func(when time.Duration) {
		t.Helper()
		if err := sleep(ctx, when-load.now()); err != nil {
			t.Fatal(err)
		}
	}
	at(warm)
	killed.Store(int64(load.now()))
	died := time.Now()
	victim.kill()
	gone.Store(int64(load.now()))
	avoided, missing := watchFor(ctx, f, name, "avoided", "down")
	if len(missing) > 0 {
		t.Fatalf("%v never left it alone", missing)
	}
	down, missing := watchFor(ctx, f, name, "down")
	if len(missing) > 0 {
		t.Fatalf("%v never heard that it is down", missing)
	}
	at(warm + dead)
	victim.start()
	waitAnswers(ctx, t, url)
	rose := time.Now()
	up, missing := watchFor(ctx, f, name, "active")
	if len(missing) > 0 {
		t.Fatalf("%v never heard that it is back", missing)
	}
	share := func(during time.Duration) float64 {
		own, others := finished(ctx, url), 0.0
		for _, e := range f.Engines() {
			others -= finished(ctx, e.URL())
		}
		if err := sleep(ctx, during); err != nil {
			t.Fatal(err)
		}
		own = finished(ctx, url) - own
		for _, e := range f.Engines() {
			others += finished(ctx, e.URL())
		}
		return own / (own + others) * float64(len(f.Engines())+1)
	}
	first := share(5 * time.Second)
	late := whenFull(full, 20*time.Second, 5*time.Second)
	at(warm + dead + back - late - time.Second)
	last := share(late)
	load.wait(t)
	load.noErrors(t)
	shown(t, "answers cut after their first byte", float64(load.result.Cut), "")
	atMost(t, "avoided by every router after", avoided.Sub(died).Seconds(), whenFull(full, 1.0, 10), "s")
	atMost(t, "down at every router after", down.Sub(died).Seconds(), whenFull(full, 5.0, 30), "s")
	atMost(t, "up at every router after its return", up.Sub(rose).Seconds(), whenFull(full, 10.0, 60), "s")
	const begins, ends = "its share of a fair one in its first five seconds", "its share of a fair one in the end"
	if !full { // in a short run the few requests may all go elsewhere, or none end in these seconds
		shown(t, begins, 100*first, "%")
		shown(t, ends, 100*last, "%")
		return
	}
	atMost(t, begins, 100*first, 60, "%")
	atLeast(t, ends, 100*last, 20, "%")
}

func waitAnswers(ctx context.Context, t *testing.T, url string) {
	t.Helper()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			return
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			t.Fatalf("%s never answered", url)
		}
	}
}

func TestLiveEngineFailsAtOnce(t *testing.T) {
	live(t)
	f := liveFleet(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var got atomic.Int64
	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/completions") {
			got.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":%q}]}`, model)
	}))
	defer sick.Close()
	defer http.DefaultClient.CloseIdleConnections()
	join(ctx, t, f, "sick", sick.URL)
	const requests = 1000
	var failures, next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for next.Add(1) <= requests {
				if _, err := chat(ctx, f.URL()); err != nil {
					failures.Add(1)
				}
			}
		})
	}
	wg.Wait()
	fair := float64(requests) / float64(len(f.Engines())+1)
	atMost(t, "its part of a fair share of requests", 100*float64(got.Load())/fair, 40, "%")
	// A plain 500 reaches the client, because the request itself may cause it.
	if failures.Load() > got.Load() {
		t.Errorf("%d failures, but only %d requests went to it", failures.Load(), got.Load())
	}
	shown(t, "requests that it got", float64(got.Load()), fmt.Sprintf("of %d", requests))
}
