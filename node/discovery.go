package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// askTimeout bounds one question to one engine: an engine busy with a long
	// prefill still answers /v1/models from another thread well within it.
	askTimeout = 5 * time.Second
	// maxModelList bounds one answer: 4 MiB hold tens of thousands of adapters.
	maxModelList = 4 << 20
	// maxModelNames bounds what is kept of one engine's answer.
	maxModelNames = 10_000
	// askers bounds how many engines are asked at once.
	askers = 16
)

// discovery asks engines for their models. It owns no state but its clients:
// what it learns goes to the callback.
type discovery struct {
	backends []Backend      // the ones to ask; index is the backend's id
	skip     []bool         // configured models: not asked
	clients  []*http.Client // per backend: each may have TLS roots of its own
	learned  func(id int, models []string, err error)
}

// run asks at once and then every interval, until ctx ends. It returns when
// no question is under way any more.
func (d *discovery) run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		d.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// close drops the idle connections.
func (d *discovery) close() {
	for _, c := range d.clients {
		c.CloseIdleConnections()
	}
}

// round asks every engine once, a few at a time.
func (d *discovery) round(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, askers)
	for id := range d.backends {
		if d.skip[id] {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			models, err := d.ask(ctx, id)
			if ctx.Err() == nil {
				d.learned(id, models, err)
			}
		})
	}
	wg.Wait()
}

// ask returns the ids one engine lists, sorted, without duplicates. An engine
// that lists none serves, as far as is known, any.
func (d *discovery) ask(ctx context.Context, id int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	b := &d.backends[id]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if b.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+b.APIKey)
	}
	resp, err := d.clients[id].Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/v1/models: %s", resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxModelList+1))
	if err != nil {
		return nil, fmt.Errorf("/v1/models: %w", err)
	}
	if len(text) > maxModelList {
		return nil, fmt.Errorf("/v1/models: answer larger than %s", Bytes(maxModelList))
	}
	return parseModels(text)
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
