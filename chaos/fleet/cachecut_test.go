package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
)

// relay passes connections on to an address, and can hold back what the other side sends.
type relay struct {
	to string
	ln net.Listener

	mu    sync.Mutex
	open  chan struct{} // closed unless the relay is cut
	conns map[net.Conn]struct{}
	work  sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: to, ln: ln, open: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(r.open)
	r.work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.work.Go(func() { r.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		r.heal()
		r.work.Wait()
	})
	return r
}

// pass copies both ways until an end closes.
func (r *relay) pass(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer up.Close()
	r.mu.Lock()
	r.conns[c], r.conns[up] = struct{}{}, struct{}{}
	r.mu.Unlock()
	r.work.Go(func() {
		_, _ = io.Copy(up, c)
		_ = up.Close()
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := up.Read(buffer)
		r.mu.Lock()
		open := r.open
		r.mu.Unlock()
		<-open
		if err == nil {
			_, err = c.Write(buffer[:n])
		}
		if err != nil {
			break
		}
	}
	r.mu.Lock()
	delete(r.conns, c)
	delete(r.conns, up)
	r.mu.Unlock()
}

// cut holds back what the other side sends from now on; connections stay open.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = make(chan struct{})
}

// heal closes all connections, as TCP does that gave up, and lets new ones pass.
func (r *relay) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	select {
	case <-r.open:
	default:
		close(r.open)
	}
}

// streamThroughRelays returns the setting events of a backend that leads to the stream of an emulated vLLM through relays.
func streamThroughRelays(t *testing.T, s *engine.Server) (setting string, relays []*relay) {
	resp, err := http.Get("http://" + s.Addr() + "/kv_event_sources")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var sources map[string]struct {
		Endpoint, Topic string
		Replay          string `json:"replay_endpoint"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&sources); err != nil {
		t.Fatal(err)
	}
	through := func(endpoint string) string {
		u, err := url.Parse(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		r := newRelay(t, "127.0.0.1:"+u.Port())
		relays = append(relays, r)
		return r.ln.Addr().String()
	}
	return fmt.Sprintf("tcp://%s?replay=%s&topic=%s", through(sources["0"].Endpoint), through(sources["0"].Replay), sources["0"].Topic), relays
}

// exactAgain is how soon after the return of its stream a cache must be known exactly.
const exactAgain = 5 * time.Second

// While the streams are silent, or an engine reports false counts of tokens, requests must find about as much in the caches as by
// prediction alone; afterwards routers are exact again.
func TestCacheEventsAreCut(t *testing.T) {
	alone := newTalk(t, 4, 3, func(*engine.ServerConfig) {}, "off")
	alone.run(1, 8, 12)
	alone.report("alone, first")
	alone.run(2, 8, 80)
	bar := alone.report("alone, then").hits

	w := newTalk(t, 4, 3, func(*engine.ServerConfig) {}, throughRelays)
	w.followed()
	w.run(1, 8, 12)
	w.report("before")
	for _, r := range w.relays {
		r.cut()
	}
	w.run(2, 8, 80)
	cut := w.report("cut")
	w.await("routers that notice the silence of the streams", func() bool {
		for _, n := range w.routers {
			for _, b := range n.BackendList().Backends {
				if b.Cache.Known == "exact" {
					return false
				}
			}
		}
		return true
	})
	for _, r := range w.relays {
		r.heal()
	}
	healed := time.Now()
	w.await("exact caches after the partition", func() bool { // of prompts that were computed while the streams were silent
		for e, body := range w.last {
			for i := range w.routers {
				if _, c := w.candidate(i, e, body); !c.Exact {
					return false
				}
			}
		}
		return true
	})
	if took := time.Since(healed); took > exactAgain {
		t.Errorf("exact again only %v after the end of the partition: want %v", took, exactAgain)
	} else {
		t.Logf("exact again %v after the end of the partition", took)
	}
	w.run(3, 8, 20)
	back := w.report("healed")
	if cut.hits < bar-hitsNoise {
		t.Errorf("%.3f of the prompt tokens cached with silent streams, %.3f by prediction alone", cut.hits, bar)
	}
	if back.error > 0.05 || back.exactIn < 0.85 {
		t.Errorf("after the partition an error of %.3f, %.3f of the exact predictions within one block", back.error, back.exactIn)
	}

	if err := w.engines[0].Inject(engine.Fault{Kind: "lie", Factor: 0.5}); err != nil {
		t.Fatal(err)
	}
	w.run(4, 8, 80)
	lie := w.report("engine 0 lies")
	if lie.hits < bar-hitsNoise {
		t.Errorf("%.3f of the prompt tokens cached with an engine that lies, %.3f by prediction alone", lie.hits, bar)
	}
	t.Logf("cached prompt tokens: %.3f by prediction alone, %.3f with silent streams, %.3f with an engine that lies", bar, cut.hits, lie.hits)
}
