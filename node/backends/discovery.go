package backends

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/raftstore"
)

const (
	// AskTimeout bounds one query; engines answer it even during a long prefill.
	AskTimeout    = 5 * time.Second
	maxModelNames = 10_000
	askers        = 16
	// loadsTimeout bounds a query for loads, since a late answer is worth little and delays others.
	loadsTimeout = time.Second
	// loadsAgain is when an engine that refused to report its loads is asked again.
	loadsAgain = time.Minute
	// loadsLead is how long an engine's last loads hide what it says of its load in its metrics.
	loadsLead = 15 * time.Second
)

// Poll calls ask for all engines every interval, which engine.PollInterval may lengthen, and for new ones at once, until ctx ends. A
// round that takes longer delays the next.
func (d *Directory) Poll(ctx context.Context, interval time.Duration, ask func(context.Context, *Engine)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var asked map[*link]bool // in this interval
	for {
		changed := d.Changed()
		list := d.Roster().List
		if asked == nil {
			timer.Reset(engine.PollInterval(interval, len(list), d.cfg.Nodes()))
		}
		askAll(ctx, slices.DeleteFunc(slices.Clone(list), func(e *Engine) bool { return asked[e.link] }), ask)
		asked = make(map[*link]bool, len(list))
		for _, e := range list {
			asked[e.link] = true
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			asked = nil
		case <-changed:
		}
	}
}

func askAll(ctx context.Context, list []*Engine, ask func(context.Context, *Engine)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, askers)
	for _, e := range list {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, AskTimeout)
			defer cancel()
			ask(ctx, e)
		})
	}
}

// AskModels queries an engine's models unless they are declared.
func (d *Directory) AskModels(ctx context.Context, e *Engine) {
	if len(e.Models) > 0 {
		return
	}
	models, failure := e.askModels(ctx)
	if errors.Is(failure, context.Canceled) {
		return // the node stops
	}
	changed, was, err := d.learnModels(e, models, failure)
	log := d.cfg.Log.With().Str("component", "discovery").Str("backend", e.Name).Logger()
	switch {
	case err != nil:
		log.Error().Err(err).Msg("cannot route by the models that the backend lists")
	case failure != nil && was != silent:
		log.Warn().Str("event", EventModelsFail).Err(failure).Msg("backend does not list its models: the last list stays in force")
	case changed, failure == nil && was != answers:
		log.Info().Str("event", EventModelsListed).Int("models", len(models)).Msg("backend listed its models")
	}
}

// learnModels: an engine that fails keeps its list. was is the outcome of the previous query.
func (d *Directory) learnModels(e *Engine, models []listedModel, failure error) (changed bool, was answering, err error) {
	if changed, was = d.noteModels(e, models, failure); changed {
		err = d.refresh()
	}
	return changed, was, err
}

func (d *Directory) noteModels(e *Engine, models []listedModel, failure error) (changed bool, was answering) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was = e.answered
	if failure != nil {
		e.answered, e.failure = silent, failure.Error()
		return false, was
	}
	e.answered, e.failure = answers, ""
	d.noteEntries(e, models)
	ids := idsOf(models)
	var adapters []string
	for i := range models {
		if models[i].adapter {
			adapters = append(adapters, models[i].id)
		}
	}
	if slices.Equal(e.listed, ids) && slices.Equal(e.adapters, adapters) {
		return false, was
	}
	e.listed, e.adapters = ids, adapters
	d.reported++
	return true, was
}

// AskMetrics queries an engine's load; engines without metrics are ignored.
func (d *Directory) AskMetrics(ctx context.Context, e *Engine) {
	text, err := e.ask(ctx, "/metrics")
	if err != nil {
		return
	}
	m, err := d.parseMetrics(e, text)
	if err != nil {
		return
	}
	a := engine.ParseAdapters(text)
	d.reportedBy(e, Load{Metrics: m, Adapters: &a, At: time.Now(), From: FromMetrics})
}

// AskLoads queries SGLang's loads. Engines that refuse are asked rarely.
func (d *Directory) AskLoads(ctx context.Context, e *Engine) {
	d.mu.Lock()
	early := time.Now().Before(e.noLoads)
	d.mu.Unlock()
	if early {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	asked := time.Now()
	text, err := e.ask(ctx, engine.LoadsPath)
	var m engine.Metrics
	if err == nil {
		m, err = engine.ParseLoads(text, e.rank)
	} else if _, no := errors.AsType[refused](err); !no {
		return // asked again
	}
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		e.noLoads = asked.Add(loadsAgain)
		return
	}
	d.reportedBy(e, Load{Metrics: m, At: asked.Add(-m.Age), From: FromLoads})
}

func (d *Directory) reportedBy(e *Engine, l Load) {
	if now := d.Roster().At(e.ID); now == nil || now.link != e.link {
		return // the number may be another engine's
	}
	leads, err := d.learnLoad(e, l)
	if err != nil {
		d.cfg.Log.Error().Str("component", "discovery").Err(err).Str("backend", e.Name).Msg("cannot route by the cache size that the backend reports")
	}
	d.cfg.Reported(e, &l, leads)
}

// parseMetrics reads a page of vLLM or SGLang. It says once if the backend's data-parallel ranks do not fit the engine's.
func (d *Directory) parseMetrics(e *Engine, page []byte) (m engine.Metrics, err error) {
	misfit := ""
	if e.rank >= 0 {
		if m, err = engine.ParseRank(page, e.rank); err != nil {
			misfit = "the backend's load is unknown: the engine does not report this data-parallel rank"
		}
	} else if m, err = engine.ParseMetrics(bytes.NewReader(page)); err == nil {
		if n := len(engine.Ranks(page)); n > 1 {
			misfit = fmt.Sprintf("the engine has %d data-parallel ranks, each with a cache of its own: add it with #ranks behind its URL, so that requests are routed to ranks", n)
		}
	}
	d.mu.Lock()
	said := e.misfit
	e.misfit = misfit != ""
	d.mu.Unlock()
	if misfit != "" && !said {
		d.cfg.Log.Warn().Str("component", "discovery").Err(err).Str("backend", e.Name).Msg(misfit)
	}
	return m, err
}

// CountRanks asks the engine at the URL of b, behind which may be a #, how many data-parallel ranks it has: by its metrics or else
// the streams of its cache events.
func (d *Directory) CountRanks(ctx context.Context, b raftstore.Backend) (int, error) {
	b.URL, _, _ = strings.Cut(b.URL, "#")
	e := d.visit(b)
	defer e.client.CloseIdleConnections()
	page, err := e.ask(ctx, "/metrics")
	if n := len(engine.Ranks(page)); err == nil && n > 0 {
		return n, nil
	}
	sources, errSources := events.Discover(ctx, e.client, e.base, e.apiKey)
	if errSources != nil {
		return 0, errors.Join(err, errSources)
	}
	return len(sources), nil
}

// learnLoad publishes another cache size; a configured size stays. leads is false if the engine's loads say more.
func (d *Directory) learnLoad(e *Engine, l Load) (leads bool, err error) {
	leads, resized := d.noteLoad(e, l)
	if resized {
		err = d.refresh()
	}
	return leads, err
}

func (d *Directory) noteLoad(e *Engine, l Load) (leads, resized bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := e.kvTokens()
	if l.KVTokens > 0 && l.KVTokens <= maxKVTokens {
		e.cache = l.KVTokens
	}
	if leads = l.From == FromLoads || e.load.From != FromLoads || l.At.Sub(e.load.At) > loadsLead; leads {
		e.load = l
	}
	if resized = e.kvTokens() != before; resized {
		d.reported++
	}
	return leads, resized
}

func (e *Engine) askModels(ctx context.Context) ([]listedModel, error) {
	text, err := e.ask(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	return parseModels(text)
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
			ID     string  `json:"id"`
			Parent *string `json:"parent"` // of an adapter: the model that it changes
		}
		if err := json.Unmarshal(raw, &entry); err != nil {
			return nil, fmt.Errorf("/v1/models: %w", err)
		}
		if entry.ID != "" {
			models = append(models, listedModel{id: entry.ID, raw: raw, adapter: entry.Parent != nil && *entry.Parent != ""})
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
