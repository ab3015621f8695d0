package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestLoads(t *testing.T) {
	cfg := fastConfig()
	cfg.MetricsStyle, cfg.MaxRunning, cfg.PrefillRate = StyleSGLang, 1, 1000
	l := startServer(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			body := fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, strings.Repeat("word", 10_000))
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := l.client.Do(req); err == nil {
				resp.Body.Close()
			}
		})
	}
	defer work.Wait()
	defer cancel()
	type core struct {
		Running  int `json:"num_running_reqs"`
		Waiting  int `json:"num_waiting_reqs"`
		Uncached int `json:"num_waiting_uncached_tokens"`
		Total    int `json:"num_total_tokens"`
		Computed int `json:"total_prefill_uncached_tokens"`
		Busy     int `json:"total_prefill_busy_us"`
	}
	var answer struct{ Loads []core }
	eventually(t, "load", func() bool {
		l.get("/v1/loads?include=core", http.StatusOK, &answer)
		return answer.Loads[0].Running == 1 && answer.Loads[0].Waiting == 1
	})
	c := answer.Loads[0]
	if c.Uncached < 10_000 || c.Uncached > 20_000 || c.Total < 10_000 || c.Busy != c.Computed*1000 {
		t.Errorf("%+v", c)
	}
}

func TestPromptTokensBySource(t *testing.T) {
	l := startServer(t, fastConfig())
	for range 2 {
		l.completion(map[string]any{"prompt": slices.Repeat([]uint32{5}, 100), "max_tokens": 1}, nil)
	}
	resp, err := l.client.Get(l.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]int{"local_compute": 104, "local_cache_hit": 96, "external_kv_transfer": 0} {
		if line := fmt.Sprintf("vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=%q} %d\n", source, want); !strings.Contains(string(page), line) {
			t.Errorf("no %s in\n%s", line, page)
		}
	}
}
