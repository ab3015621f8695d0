package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine/node/config"
	"grapevine/prefixtree"
	"grapevine/proxy/engine"
)

const (
	// askTimeout suffices during a long prefill: engines answer from another thread.
	askTimeout = 5 * time.Second
	// 4 MiB hold tens of thousands of adapters, and ten times the largest metrics page seen.
	maxAnswer     = 4 << 20
	maxModelNames = 10_000
	askers        = 16
)

type question func(ctx context.Context, u *upstream)

// rounds asks all backends every interval, and new ones at once, until ctx ends and all questions
// have returned.
func (f *fleet) rounds(ctx context.Context, interval time.Duration, ask question) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var asked map[*link]bool // in this interval
	for {
		changed := f.rosterChanged()
		list := f.roster().list
		askAll(ctx, slices.DeleteFunc(slices.Clone(list), func(u *upstream) bool { return asked[u.link] }), ask)
		asked = make(map[*link]bool, len(list))
		for _, u := range list {
			asked[u.link] = true
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			asked = nil
		case <-changed:
		}
	}
}

func askAll(ctx context.Context, list []*upstream, ask question) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, askers)
	for _, u := range list {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			ask(ctx, u)
		})
	}
}

// ask sends a request with the engine's api_key; body may be nil. It returns the body of a 200
// answer, of at most limit bytes.
func (u *upstream) ask(ctx context.Context, path string, body []byte, limit int64) ([]byte, error) {
	resp, err := u.send(ctx, path, body)
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
		return nil, fmt.Errorf("%s: answer larger than %s", path, config.Bytes(limit))
	}
	return text, nil
}

func (u *upstream) send(ctx context.Context, path string, body []byte) (*http.Response, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, u.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if u.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+u.APIKey)
	}
	return u.client.Do(req)
}

// post sends a JSON body to the named backend and returns the backend's number.
func (f *fleet) post(ctx context.Context, name, path string, body []byte) (prefixtree.Backend, error) {
	u := f.roster().named(name)
	if u == nil {
		return 0, fmt.Errorf("backend %s was removed", name)
	}
	_, err := u.ask(ctx, path, body, maxAnswer)
	return u.id, err
}

func (u *upstream) askModels(ctx context.Context) ([]listedModel, error) {
	text, err := u.ask(ctx, "/v1/models", nil, maxAnswer)
	if err != nil {
		return nil, err
	}
	return parseModels(text)
}

// askMetrics understands the metric names of vLLM and SGLang.
func (u *upstream) askMetrics(ctx context.Context) (engine.Metrics, error) {
	text, err := u.ask(ctx, "/metrics", nil, maxAnswer)
	if err != nil {
		return engine.Metrics{}, err
	}
	return engine.ParseMetrics(bytes.NewReader(text))
}

// parseModels returns OpenAI's list sorted by id, without duplicates.
func parseModels(text []byte) ([]listedModel, error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("/v1/models: %w", err)
	}
	if len(list.Data) > maxModelNames {
		return nil, fmt.Errorf("/v1/models: %d models, more than %d", len(list.Data), maxModelNames)
	}
	var models []listedModel
	for _, raw := range list.Data {
		var entry struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &entry); err != nil {
			return nil, fmt.Errorf("/v1/models: %w", err)
		}
		if entry.ID != "" {
			models = append(models, listedModel{id: entry.ID, raw: raw})
		}
	}
	slices.SortStableFunc(models, func(a, b listedModel) int { return strings.Compare(a.id, b.id) })
	return slices.CompactFunc(models, func(a, b listedModel) bool { return a.id == b.id }), nil
}

func idsOf(list []listedModel) []string {
	var names []string
	for i := range list {
		names = append(names, list[i].id)
	}
	return names
}
