package backends

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

// Engine is one backend of one Roster. Only its link changes.
type Engine struct {
	raftstore.Backend                    // as agreed, or from the node's own list
	Agreed            bool               // false: from the node's own list
	ID                prefixtree.Backend // this node's number; see Registry
	Key               uint32             // prefixtree.BackendKey of the name

	since  prefixtree.Time // see policy.Backend.Since
	base   string          // the engine's URL, without the rank
	rank   int             // data-parallel rank of the engine; -1: all of it
	apiKey string
	target proxy.Target
	prober *engine.Prober
	*link
}

// link outlives rosters while a backend's URL and CA stay. Directory.mu guards the engine's answers.
type link struct {
	url, ca  string
	tls      *tls.Config  // nil: no TLS
	client   *http.Client // for the node's own requests
	listed   []string     // models that the engine listed; nil if it never answered
	adapters []string     // those of listed that are LoRA adapters
	failure  string       // of the last query for models; "" if it succeeded
	answered answering    // outcome of that query
	load     Load
	misfit   bool      // its ranks are not those of the engine, and the log says so
	cache    int64     // KV tokens, as last reported; 0: never
	noLoads  time.Time // until when it is not asked for its loads
}

type answering uint8

const (
	notAsked answering = iota
	answers
	silent
)

// Load is an engine's latest load report; At is zero before the first.
type Load struct {
	engine.Metrics
	Adapters *engine.Adapters // nil: not in this report
	At       time.Time        // of the counts, by this node's clock
	From     string           // FromMetrics or FromLoads
}

const (
	FromMetrics = "/metrics"
	FromLoads   = "/v1/loads" // of SGLang
)

// Keys are the credentials of backends by name. They never leave this node.
type Keys map[string]credentials

type credentials struct {
	apiKey string
	ca     string // PEM roots; "": the system's
}

// ReadKeys reads the API keys and CA files that list names. Its error names the backend and the key.
func ReadKeys(list []config.Backend) (Keys, error) {
	keys := make(Keys)
	for i := range list {
		b := &list[i]
		if b.APIKey == "" && b.APIKeyFile == "" && b.CAFile == "" {
			continue
		}
		c := credentials{apiKey: b.APIKey}
		if b.APIKeyFile != "" {
			text, err := member.ReadSecret(b.APIKeyFile, config.MaxSecretFile)
			if err != nil {
				return nil, fmt.Errorf("backend %s: api_key_file: %w", b.Name, err)
			}
			if c.apiKey = strings.TrimSpace(string(text)); c.apiKey == "" || !config.HeaderWord(c.apiKey) {
				return nil, fmt.Errorf("backend %s: api_key_file %s: want one word of visible ASCII", b.Name, b.APIKeyFile)
			}
		}
		if b.CAFile != "" {
			pem, err := os.ReadFile(b.CAFile)
			if err != nil {
				return nil, fmt.Errorf("backend %s: ca_file: %w", b.Name, err)
			}
			if !x509.NewCertPool().AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("backend %s: ca_file %s holds no certificate", b.Name, b.CAFile)
			}
			c.ca = string(pem)
		}
		keys[b.Name] = c
	}
	return keys, nil
}

// connect gives e its target, its credentials and the link of was, which may be nil. Another CA
// makes a new link with the old one's answers: no connection that the old CA verified is used again.
func (d *Directory) connect(e, was *Engine, c credentials) {
	e.base, e.rank = raftstore.SplitRank(e.URL)
	b := config.Backend{URL: e.base}
	addr, host, base, secure := b.Address()
	if was != nil && was.ca == c.ca {
		e.link = was.link
	} else {
		e.link = &link{url: e.URL}
		if was != nil {
			*e.link = *was.link
		}
		e.ca = c.ca
		if secure {
			name := (&url.URL{Host: host}).Hostname()
			e.tls = &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
			if c.ca != "" {
				e.tls.RootCAs = x509.NewCertPool()
				e.tls.RootCAs.AppendCertsFromPEM([]byte(c.ca))
			}
		}
		e.client = &http.Client{Transport: &http.Transport{
			TLSClientConfig: e.tls.Clone(), MaxIdleConns: 1, IdleConnTimeout: d.cfg.Idle,
			Proxy: nil,
		}}
	}
	e.apiKey = c.apiKey
	e.target = proxy.Target{ID: e.ID, Name: e.Name, Addr: addr, Host: host, BasePath: base, TLS: e.tls, Role: roleOf(e.Role), Bootstrap: e.BootstrapPort}
	if was != nil && was.link == e.link && was.apiKey == e.apiKey {
		e.prober = was.prober
	} else {
		client := *e.client
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		e.prober = &engine.Prober{Client: &client, URL: e.base, Key: e.apiKey}
	}
	e.target.Header = e.headers()
}

// RankHeader makes vLLM and SGLang compute a request on a data-parallel rank.
const RankHeader = "X-Data-Parallel-Rank"

// headers are those of requests, of clients and of the node.
func (e *Engine) headers() (list [][2]string) {
	if e.apiKey != "" {
		list = append(list, [2]string{"Authorization", "Bearer " + e.apiKey})
	}
	if e.rank >= 0 {
		list = append(list, [2]string{RankHeader, strconv.Itoa(e.rank)})
	}
	return list
}

func (e *Engine) Probe(ctx context.Context, path string) (engine.Ailment, error) {
	return e.prober.Probe(ctx, path)
}

// EventSources asks the engine where it publishes cache events, of all its data-parallel ranks or of the backend's. Errors as
// events.Discover.
func (e *Engine) EventSources(ctx context.Context) ([]events.Source, error) {
	all, err := events.Discover(ctx, e.prober.Client, e.base, e.apiKey)
	if err != nil || e.rank < 0 {
		return all, err
	}
	if e.rank >= len(all) {
		return nil, fmt.Errorf("%w of rank %d: it names the streams of %d", events.ErrNone, e.rank, len(all))
	}
	return all[e.rank : e.rank+1], nil
}

// send sends the node's own request, a GET.
func (e *Engine) send(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base+path, nil)
	if err != nil {
		return nil, err
	}
	if e.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.apiKey)
	}
	return e.client.Do(req)
}

// refused is a status from 400 to 499.
type refused string

func (r refused) Error() string { return string(r) }

// maxAnswer is ten times the largest metrics page seen.
const maxAnswer = 4 << 20

func (e *Engine) ask(ctx context.Context, path string) ([]byte, error) {
	resp, err := e.send(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		return nil, fmt.Errorf("%s: %w", path, refused(resp.Status))
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("%s: answer larger than %s", path, config.Bytes(maxAnswer))
	}
	return text, nil
}

// firstGeneration is that of a backend whose name the store never had.
const firstGeneration = 1

// returned is the start of slow start: the backend was added, restarted or resumed. It is 0 for the
// first generation of configured backends, all of which are cold.
func (e *Engine) returned() prefixtree.Time {
	if e.State != raftstore.Active || e.Source == raftstore.Static && e.Generation == firstGeneration && e.Reason == "" {
		return 0
	}
	return prefixtree.Time(e.Since)
}

// startedSince is returned, or when this node saw a new generation; never in the future, since
// clocks differ. was is the engine in the previous roster, or nil.
func (e *Engine) startedSince(was *Engine) prefixtree.Time {
	at := now()
	since := min(e.returned(), at)
	switch {
	case was == nil || !was.Agreed:
		return since
	case was.Generation != e.Generation:
		return at
	case was.returned() == e.returned():
		return was.since
	}
	return max(since, was.since)
}

// KnownGeneration is 0 until the fleet's state is known; facts learned before stay valid.
func (e *Engine) KnownGeneration() uint32 {
	if !e.Agreed {
		return 0
	}
	return e.Generation
}

// LastResort says whether only health took the backend down. The policy uses it if no other is
// left.
func (e *Engine) LastResort() bool { return e.DownByHealth() && !e.Drained }

func (e *Engine) DownByHealth() bool {
	return e.State == raftstore.Down && e.DownBy == raftstore.ByHealth
}

// eligible: a last resort is active; health makes the policy avoid it.
func (e *Engine) eligible() policy.State {
	switch {
	case e.State == raftstore.Active || e.LastResort():
		return policy.Active
	case e.State == raftstore.Draining:
		return policy.Draining
	}
	return policy.Down // including states of later releases
}

// models returns nil for any. Directory.mu must be held.
func (e *Engine) models() []string {
	if len(e.Models) > 0 {
		return e.Models
	}
	return e.listed
}

// kvTokens is 0 if unknown. Directory.mu must be held.
func (e *Engine) kvTokens() int {
	if e.KVTokens > 0 {
		return int(min(e.KVTokens, maxKVTokens))
	}
	return int(e.cache)
}

// maxKVTokens exceeds any engine; larger values would overflow sums.
const maxKVTokens = 1 << 40

// Directory.mu must be held.
func (e *Engine) forPolicy() policy.Backend {
	return policy.Backend{
		ID: e.ID, Generation: e.KnownGeneration(), Name: e.Name, Models: e.models(), Adapters: e.adapters, Labels: e.Labels, Weight: e.Weight, State: e.eligible(),
		Role: e.target.Role, Paired: e.BootstrapPort != 0,
		KVTokens: e.kvTokens(), Since: e.since, Handle: &e.target,
	}
}

func roleOf(r raftstore.Role) policy.Role {
	switch r {
	case raftstore.Prefill:
		return policy.Prefill
	case raftstore.Decode:
		return policy.Decode
	}
	return policy.Both
}

func sameForPolicy(x, y policy.Backend) bool {
	a, b := x.Handle.(*proxy.Target), y.Handle.(*proxy.Target)
	return x.ID == y.ID && x.Generation == y.Generation && x.Name == y.Name && slices.Equal(x.Models, y.Models) &&
		slices.Equal(x.Adapters, y.Adapters) && slices.Equal(x.Labels, y.Labels) && x.Weight == y.Weight && x.State == y.State && x.KVTokens == y.KVTokens && x.Since == y.Since &&
		x.Role == y.Role && x.Paired == y.Paired && a.Bootstrap == b.Bootstrap &&
		a.Addr == b.Addr && a.Host == b.Host && a.BasePath == b.BasePath && a.TLS == b.TLS && slices.Equal(a.Header, b.Header)
}

func now() prefixtree.Time { return prefixtree.Time(time.Now().UnixMilli()) }
