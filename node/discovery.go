package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"grapevine/proxy/engine"
)

const (
	// askTimeout bounds one question to one engine: an engine busy with a long
	// prefill still answers from another thread well within it.
	askTimeout = 5 * time.Second
	// maxModelList and maxMetricsPage bound one answer: 4 MiB hold tens of
	// thousands of adapters, and ten times the largest metrics page seen.
	maxModelList   = 4 << 20
	maxMetricsPage = 4 << 20
	// maxModelNames bounds what is kept of one engine's list.
	maxModelNames = 10_000
	// askers bounds how many engines are asked at once.
	askers = 16
)

// asker asks engines about themselves. It keeps nothing but its clients: what
// it hears goes to the callbacks.
type asker struct {
	backends []Backend      // index is the backend's id
	clients  []*http.Client // per backend: each may have TLS roots of its own
}

// rounds puts a question to every backend at once, and again every interval,
// until ctx ends. It returns when no question is under way any more.
func (a *asker) rounds(ctx context.Context, interval time.Duration, ask func(ctx context.Context, id int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		a.round(ctx, ask)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round puts the question to every backend once, a few at a time.
func (a *asker) round(ctx context.Context, ask func(ctx context.Context, id int)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, askers)
	for id := range a.backends {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			ask(ctx, id)
		})
	}
}

// close drops the idle connections.
func (a *asker) close() {
	for _, c := range a.clients {
		c.CloseIdleConnections()
	}
}

// get asks one backend for one page of at most limit bytes.
func (a *asker) get(ctx context.Context, id int, path string, limit int64) ([]byte, error) {
	b := &a.backends[id]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+path, nil)
	if err != nil {
		return nil, err
	}
	if b.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+b.APIKey)
	}
	resp, err := a.clients[id].Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s: answer larger than %s", path, Bytes(limit))
	}
	return text, nil
}

// models returns the ids one engine lists, sorted, without duplicates. An
// engine that lists none serves, as far as is known, any.
func (a *asker) models(ctx context.Context, id int) ([]string, error) {
	text, err := a.get(ctx, id, "/v1/models", maxModelList)
	if err != nil {
		return nil, err
	}
	return parseModels(text)
}

// metrics returns what one engine says of its load, under vLLM's or SGLang's names.
func (a *asker) metrics(ctx context.Context, id int) (engine.Metrics, error) {
	text, err := a.get(ctx, id, "/metrics", maxMetricsPage)
	if err != nil {
		return engine.Metrics{}, err
	}
	return engine.ParseMetrics(bytes.NewReader(text))
}

// parseModels reads OpenAI's list of models.
func parseModels(text []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("/v1/models: %w", err)
	}
	if len(list.Data) > maxModelNames {
		return nil, fmt.Errorf("/v1/models: %d models, more than %d", len(list.Data), maxModelNames)
	}
	var names []string
	for _, m := range list.Data {
		if m.ID != "" {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
