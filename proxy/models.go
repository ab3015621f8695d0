package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/zeebo/xxh3"
)

var modelsPath = []byte("/v1/models")

const (
	modelsFresh   = 3 * time.Second // how long a merged list is served again
	modelsAtOnce  = 16              // backends asked at the same time
	modelsKeys    = 64              // lists kept: one per client credential
	maxModelsBody = 4 << 20         // of one backend
)

// modelCache keeps merged lists of models. A list belongs to the credentials it was asked with, since backends may hide
// models from some. While a list is being fetched, others who ask for it wait for it.
type modelCache struct {
	mu      sync.Mutex
	lists   map[uint64]*modelList
	fetches sync.WaitGroup
}

type modelList struct {
	done    chan struct{} // closed when the rest is set
	fetched time.Time
	models  []model // by id
	err     error
}

// model is one entry of a list, as the backend sent it.
type model struct {
	id  string
	raw json.RawMessage
}

func (m *modelCache) init() { m.lists = make(map[uint64]*modelList) }

// wait returns when no fetch is running.
func (m *modelCache) wait() { m.fetches.Wait() }

// serveModels answers /v1/models, and /v1/models/{id}, from the merged lists of all backends.
func (e *exchange) serveModels() {
	list := e.proxy.modelsFor(&e.head)
	if list.err != nil {
		e.refuse(fault{fasthttp.StatusBadGateway, "upstream_unreachable", "no backend told its models"})
		return
	}
	h := &e.ctx.Response.Header
	h.SetContentType("application/json")
	if rest := e.path[len(modelsPath):]; len(rest) > 1 {
		id, err := url.PathUnescape(string(rest[1:]))
		i, found := slices.BinarySearchFunc(list.models, id, func(m model, id string) int { return compare(m.id, id) })
		if err != nil || !found {
			e.refuse(fault{fasthttp.StatusNotFound, "model_not_found", "no backend serves the model " + quoted(rest[1:])})
			return
		}
		e.ctx.Response.SetBody(list.models[i].raw)
	} else {
		e.ctx.Response.SetBody(list.page())
	}
	e.decorate()
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// page is the whole list as one page: OpenAI's object, with the members that Anthropic's clients page by.
func (l *modelList) page() []byte {
	page := struct {
		Object  string            `json:"object"`
		Data    []json.RawMessage `json:"data"`
		FirstID *string           `json:"first_id"`
		LastID  *string           `json:"last_id"`
		HasMore bool              `json:"has_more"`
	}{Object: "list", Data: make([]json.RawMessage, len(l.models))}
	for i := range l.models {
		page.Data[i] = l.models[i].raw
	}
	if n := len(l.models); n > 0 {
		page.FirstID, page.LastID = &l.models[0].id, &l.models[n-1].id
	}
	return marshal(page)
}

// modelsFor returns the list for the credentials in h, fetching it if there is none or it is old.
func (p *Proxy) modelsFor(h *requestHead) *modelList {
	hash := xxh3.New()
	for _, part := range [][]byte{h.authorization, {0}, h.apiKey} {
		_, _ = hash.Write(part) // a hash does not fail
	}
	key := hash.Sum64()
	m := &p.models
	m.mu.Lock()
	l := m.lists[key]
	if l == nil || l.old() {
		if len(m.lists) >= modelsKeys {
			clear(m.lists) // those who wait for one hold it themselves
		}
		l = &modelList{done: make(chan struct{})}
		m.lists[key] = l
		m.fetches.Add(1)
		m.mu.Unlock()
		// Here, not on a goroutine: a fetch whose client leaves still serves those who wait for it.
		l.fetch(p, h)
		l.fetched = time.Now()
		close(l.done)
		m.fetches.Done()
		return l
	}
	m.mu.Unlock()
	<-l.done
	return l
}

// old reports whether the list is to be fetched again. Failures are not kept.
func (l *modelList) old() bool {
	select {
	case <-l.done:
		return l.err != nil || time.Since(l.fetched) > modelsFresh
	default:
		return false
	}
}

// fetch asks all backends, some at a time, and merges what they tell. Only if none answers is it an error.
func (l *modelList) fetch(p *Proxy, h *requestHead) {
	targets := p.cfg.Models()
	lists := make([][]model, len(targets))
	errs := make([]error, len(targets))
	gate := make(chan struct{}, modelsAtOnce)
	var asked sync.WaitGroup
	for i := range targets {
		gate <- struct{}{}
		asked.Go(func() {
			defer func() { <-gate }()
			lists[i], errs[i] = p.fetchModels(&targets[i], h)
		})
	}
	asked.Wait()
	seen := make(map[string]bool)
	answered := len(targets) == 0
	for i := range targets {
		if errs[i] != nil {
			p.cfg.Log.Debug().Err(errs[i]).Str("backend", targets[i].Name).Msg("cannot list models")
			continue
		}
		answered = true
		for _, m := range lists[i] {
			if !seen[m.id] {
				seen[m.id] = true
				l.models = append(l.models, m)
			}
		}
	}
	slices.SortFunc(l.models, func(a, b model) int { return compare(a.id, b.id) })
	if !answered {
		l.err = errors.Join(errs...)
	}
}

// fetchModels asks one backend, with the client's credentials unless the target has its own.
func (p *Proxy) fetchModels(t *Target, h *requestHead) ([]model, error) {
	up := p.upstreams.get(t)
	for {
		if up == nil {
			var err error
			if up, err = p.upstreams.dial(p.base, t); err != nil {
				return nil, err
			}
		}
		body, status, err := p.getModels(up, t, h)
		if err == nil && status != fasthttp.StatusOK {
			return nil, fmt.Errorf("status %d", status)
		}
		if err == nil {
			return parseModels(body)
		}
		if !up.reused || !untouched(err) {
			return nil, err
		}
		up = nil
	}
}

// getModels makes one GET and consumes the connection.
func (p *Proxy) getModels(up *upstreamConn, t *Target, h *requestHead) (body []byte, status int, err error) {
	up.head = append(up.head[:0], "GET "...)
	up.head = append(up.head, t.BasePath...)
	up.head = append(up.head, modelsPath...)
	host := t.Host
	if host == "" {
		host = t.Addr
	}
	up.head = append(up.head, " HTTP/1.1\r\n"...)
	up.head = appendHeader(up.head, []byte("Host"), []byte(host))
	up.head = appendHeader(up.head, []byte("Accept"), []byte("application/json"))
	for _, own := range []struct {
		name  string
		value []byte
	}{{"Authorization", h.authorization}, {"X-Api-Key", h.apiKey}} {
		if len(own.value) > 0 && !sets(t.Header, []byte(own.name)) {
			up.head = appendHeader(up.head, []byte(own.name), own.value)
		}
	}
	for _, kv := range t.Header {
		up.head = appendHeader(up.head, []byte(kv[0]), []byte(kv[1]))
	}
	up.head = append(up.head, "\r\n"...)
	defer func() {
		if up != nil {
			up.raw.Close()
		}
	}()
	if err := up.raw.SetDeadline(time.Now().Add(p.cfg.Timeouts.Models)); err != nil {
		return nil, 0, err
	}
	// A drain that is cut short does not wait for engines that hang.
	stop := context.AfterFunc(p.base, up.interrupt)
	defer stop()
	if err := up.send(nil, func() {}); err != nil {
		return nil, 0, untouchedError{err}
	}
	var resp fasthttp.Response
	if err := resp.ReadLimitBody(up.br, maxModelsBody); err != nil {
		return nil, 0, err
	}
	if keep := cleanResponse(&resp.Header); keep && up.br.Buffered() == 0 && stop() && up.raw.SetDeadline(time.Time{}) == nil {
		p.upstreams.put(up)
		up = nil
	}
	return bytes.Clone(resp.Body()), resp.StatusCode(), nil
}

func parseModels(body []byte) ([]model, error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list of models: %w", err)
	}
	models := make([]model, 0, len(list.Data))
	for _, raw := range list.Data {
		var entry struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &entry); err == nil && entry.ID != "" {
			models = append(models, model{entry.ID, raw})
		}
	}
	return models, nil
}
