package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"grapevine.example/proxy/engine/events"
)

// mirror counts the copies of each block of an engine by the router's reading of its stream.
type mirror struct {
	mu       sync.Mutex
	copies   map[uint64]int
	sessions map[string]int // stores
	state    events.State
	degraded bool // at some time
	unknown  int  // removals of blocks that were not stored
	cleared  int
	resets   int
}

func (m *mirror) Batch(list []events.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range list {
		switch e.Kind {
		case events.Stored:
			m.sessions[string(e.Session)]++
			for _, h := range e.Hashes {
				m.copies[h]++
			}
		case events.Removed:
			for _, h := range e.Hashes {
				if m.copies[h]--; m.copies[h] < 0 {
					m.unknown++
				}
				if m.copies[h] <= 0 {
					delete(m.copies, h)
				}
			}
		case events.Cleared:
			m.cleared++
			clear(m.copies)
		}
	}
}

func (m *mirror) Reset(string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.copies)
	m.resets++
}

func (m *mirror) State(s events.State, _ string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
	m.degraded = m.degraded || s == events.Degraded
}

// follow subscribes to the engine until the end of the test.
func (l *live) follow() (*events.Stream, *mirror) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	sources, err := events.Discover(ctx, l.client, l.url, "")
	if err != nil || len(sources) != 1 {
		l.t.Fatal(sources, err)
	}
	m := &mirror{copies: make(map[uint64]int), sessions: make(map[string]int)}
	stream := &events.Stream{Source: sources[0], Sink: m}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stream.Run(ctx)
	}()
	l.t.Cleanup(func() {
		cancel()
		<-done
	})
	return stream, m
}

// holds returns the keys of the engine's cache.
func (l *live) holds() map[uint64]bool {
	l.t.Helper()
	keys := make(map[uint64]bool)
	err := l.driver.do(func(time.Duration) {
		for _, n := range l.driver.model.cache.heads {
			for _, k := range n.keys {
				keys[k] = true
			}
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return keys
}

func eventConfig(style MetricsStyle) ServerConfig {
	cfg := fastConfig()
	cfg.KVTokens, cfg.MaxModelLen, cfg.MaxRunning, cfg.MetricsStyle = 64*16, 40*16, 8, style
	cfg.Events, cfg.EventsReplay = "127.0.0.1:0", "127.0.0.1:0"
	return cfg
}

// traffic sends prompts with common beginnings, more than the cache holds, several at once.
func (l *live) traffic(rng *rand.Rand, requests int) {
	var work sync.WaitGroup
	defer work.Wait()
	turns := make(chan struct{}, 4)
	for range requests {
		var prompt []uint32
		family, length := uint32(rng.IntN(6)), 16+rng.IntN(20*16)
		for i := range length {
			prompt = append(prompt, family<<16|uint32(i))
			if i%80 == 79 && rng.IntN(2) == 0 {
				family += 6
			}
		}
		body := map[string]any{"prompt": prompt, "max_tokens": 1 + rng.IntN(60), "session_id": fmt.Sprint("s", family), "n": 1 + rng.IntN(2)}
		turns <- struct{}{}
		work.Go(func() {
			l.completion(body, nil)
			<-turns
		})
	}
}

// The router's reading of the stream agrees with the cache, whatever is lost as long as a replay has it.
func TestEventsMirrorTheCache(t *testing.T) {
	for _, style := range []MetricsStyle{StyleVLLM, StyleSGLang} {
		for name, test := range map[string]struct {
			faults func(*EventsConfig)
			seen   func(*events.Stream, *mirror) bool
		}{
			"clean":      {func(*EventsConfig) {}, func(s *events.Stream, m *mirror) bool { return m.resets == 0 }},
			"loss":       {func(c *EventsConfig) { c.EventsLoss = 30 }, func(s *events.Stream, _ *mirror) bool { return s.Counters.Replayed.Load() > 0 }},
			"duplicates": {func(c *EventsConfig) { c.EventsDuplicates = 100 }, func(s *events.Stream, _ *mirror) bool { return s.Counters.Duplicates.Load() > 0 }},
			"restart":    {func(*EventsConfig) {}, func(_ *events.Stream, m *mirror) bool { return m.resets == 1 && m.cleared == 0 }},
			"mute":       {func(*EventsConfig) {}, func(s *events.Stream, m *mirror) bool { return s.Counters.Replayed.Load() > 0 && m.resets == 0 }},
		} {
			t.Run(string(style)+"/"+name, func(t *testing.T) {
				cfg := eventConfig(style)
				test.faults(&cfg.EventsConfig)
				l := startServer(t, cfg)
				stream, m := l.follow()
				seed := uint64(time.Now().UnixNano())
				t.Logf("seed %d", seed)
				rng := rand.New(rand.NewPCG(seed, 0))
				mirrored := func() bool {
					l.traffic(rng, 1) // shows that the batch before it was lost
					same := false
					for end := time.Now().Add(100 * time.Millisecond); !same && time.Now().Before(end); time.Sleep(time.Millisecond) {
						holds := l.holds()
						m.mu.Lock()
						same = len(m.copies) == len(holds) && !slices.ContainsFunc(slices.Collect(maps.Keys(m.copies)), func(h uint64) bool { return !holds[h] })
						m.mu.Unlock()
					}
					return same
				}
				l.traffic(rng, 60)
				eventually(t, "mirror", mirrored)
				if name == "restart" || name == "mute" {
					sent := int64(len(l.published()))
					if err := l.Inject(Fault{Kind: name}); err != nil {
						t.Fatal(err)
					}
					l.traffic(rng, 60)
					if n := stream.Counters.Batches.Load(); name == "mute" && n > sent {
						t.Errorf("%d batches through a stream that is mute", n-sent)
					}
				}
				if name == "mute" {
					stream.Silent("no batch comes") // it connects again, to a publisher that does not answer
					if err := l.Inject(Fault{Kind: "none"}); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, "mirror after "+name, func() bool {
					same := mirrored()
					m.mu.Lock()
					defer m.mu.Unlock()
					return same && m.state == events.Live && test.seen(stream, m)
				})
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.unknown > 0 || m.state != events.Live || len(m.sessions) == 0 || m.sessions[""] > 0 {
					t.Errorf("%d blocks removed that were not stored, state %v, sessions %v", m.unknown, m.state, m.sessions)
				}
			})
		}
	}
}

// After more losses the stream is down, perhaps before the test looks again.
func TestEventsLostWithoutReplay(t *testing.T) {
	cfg := eventConfig(StyleVLLM)
	cfg.EventsReplay, cfg.EventsLoss = "", 20
	l := startServer(t, cfg)
	stream, m := l.follow()
	rng := rand.New(rand.NewPCG(1, 1))
	eventually(t, "loss", func() bool {
		l.traffic(rng, 5)
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.degraded && stream.Counters.Missing.Load() > 0
	})
}

func TestEventsRestart(t *testing.T) {
	cfg := eventConfig(StyleSGLang)
	cfg.EventsRestart = 20
	l := startServer(t, cfg)
	_, m := l.follow()
	rng := rand.New(rand.NewPCG(1, 1))
	eventually(t, "restart", func() bool {
		l.traffic(rng, 5)
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.resets > 1 && m.cleared == 0
	})
}

// Clearing the cache shows with the next request.
func TestEventsClear(t *testing.T) {
	for style, path := range map[MetricsStyle]string{StyleVLLM: "/reset_prefix_cache", StyleSGLang: "/flush_cache"} {
		l := startServer(t, eventConfig(style))
		body := map[string]any{"prompt": slices.Repeat([]uint32{7}, 40), "max_tokens": 1}
		l.completion(body, nil)
		before := len(l.published())
		if status, answer := l.post(path, ""); status != http.StatusOK {
			t.Fatalf("%s: %d %s", style, status, answer)
		}
		if n := len(l.published()); n != before || len(l.holds()) != 0 {
			t.Errorf("%s: %d batches, want %d; %d blocks", style, n, before, len(l.holds()))
		}
		l.completion(body, nil)
		got := unpackBatch(t, l.published()[before])
		if len(got) != 2 || member(got[0], "type") != AllBlocksCleared || member(got[1], "type") != BlockStored {
			t.Errorf("%s: %v", style, got)
		}
	}
}

// SGLang signs hashes, names the session of the body only, does not store a block twice, and is late while it only decodes.
func TestEventsOfSGLang(t *testing.T) {
	counts := make(map[MetricsStyle]int)
	for _, style := range []MetricsStyle{StyleVLLM, StyleSGLang} {
		l := startServer(t, eventConfig(style))
		for i := range uint32(4) { // fills the cache
			l.completion(map[string]any{"prompt": slices.Repeat([]uint32{i}, 15*16), "max_tokens": 1}, map[string]string{"X-Session-ID": "header"})
		}
		whole := map[string]any{"prompt": slices.Repeat([]uint32{3}, 15*16), "max_tokens": 1}
		before := len(l.published())
		l.completion(whole, nil)
		if again := len(l.published()) - before; again != map[MetricsStyle]int{StyleVLLM: 1}[style] {
			t.Errorf("%s: %d batches of a prompt that was cached whole", style, again)
		}
		l.completion(map[string]any{"prompt": []uint32{9}, "max_tokens": 400, "session_id": "body"}, nil)
		counts[style] = len(l.published()) - before
		if style == StyleVLLM {
			continue
		}
		names := []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"}
		signed := false
		for i, payload := range l.published() {
			for _, e := range unpackBatch(t, payload) {
				want := names
				if member(e, "type") == BlockRemoved {
					want = []string{"type", "block_hashes", "medium"}
				}
				if s := member(e, "session_id"); s != nil {
					want = append(slices.Clone(want), "session_id")
					if s != "body" {
						t.Errorf("batch %d: session %v", i, s)
					}
				}
				var got []string
				for _, p := range e {
					got = append(got, p.name)
				}
				if !slices.Equal(got, want) {
					t.Errorf("batch %d: members %v, want %v", i, got, want)
				}
				for _, h := range member(e, "block_hashes").([]any) {
					if _, negative := h.(int64); negative {
						signed = true
					}
				}
			}
		}
		if !signed {
			t.Error("no negative hash in 60")
		}
	}
	if counts[StyleSGLang] > 400/lateSteps+2 || counts[StyleVLLM] < 400/16 {
		t.Errorf("batches of 400 steps: %v", counts)
	}
}

func TestEventsConfig(t *testing.T) {
	for _, c := range []EventsConfig{
		{EventsLoss: 1}, {EventsReplay: "127.0.0.1:0"}, {Events: "127.0.0.1:0", EventsLoss: 101}, {Events: "127.0.0.1:0", EventsRestart: -1},
	} {
		if s, err := NewServer(ServerConfig{EventsConfig: c}); err == nil {
			s.Close()
			t.Errorf("%+v is accepted", c)
		}
	}
}
