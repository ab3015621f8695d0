package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
)

// The router learns from the engines which models are adapters and which of them are in use, and loads each on one engine.
func TestAdaptersAreLoadedOnce(t *testing.T) {
	t.Parallel()
	var urls []string
	var engines []*engine.Server
	for range 2 {
		s := emulated(t, engine.ServerConfig{
			Config: engine.Config{PrefillRate: 1e6, DecodeStep: 8 * time.Millisecond, AdapterSlots: 2}, Models: []string{"m"},
			Adapters: []string{"de", "fr", "it", "es"}, Log: zerolog.Nop(),
		})
		engines, urls = append(engines, s), append(urls, "http://"+s.Addr())
	}
	cfg := testConfig(urls...)
	cfg.MetricsInterval, cfg.SlowStart = 20*time.Millisecond, 0
	n := startNode(t, cfg)
	eventually(t, "the engines list their adapters", func() bool {
		list := n.router.View().Backends
		return strings.Join(list[0].Adapters, " ") == "de es fr it" && strings.Join(list[1].Adapters, " ") == "de es fr it"
	})
	eventually(t, "the engines' load is read", func() bool {
		for _, e := range n.backends.Roster().List {
			if l, _ := n.backends.Load(e); l.At.IsZero() {
				return false
			}
		}
		return true
	})
	var clients sync.WaitGroup
	for i, model := range []string{"de", "fr", "it", "es"} {
		clients.Go(func() {
			for turn := range 20 {
				body, _ := json.Marshal(map[string]any{"model": model, "max_tokens": 30, "prompt": strings.Repeat(fmt.Sprint(i, turn), 500)})
				resp, err := http.Post("http://"+n.Addr()+"/v1/completions", "application/json", strings.NewReader(string(body)))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %d", model, resp.StatusCode)
				}
			}
		})
	}
	clients.Wait()
	loads := engines[0].Stats().AdapterLoads + engines[1].Stats().AdapterLoads
	t.Logf("%d loads of 4 adapters into 2 slots of each of 2 engines, for 80 requests", loads)
	if loads > 16 {
		t.Errorf("%d loads of 4 adapters into 2 slots of each of 2 engines, for 80 requests", loads)
	}
}
