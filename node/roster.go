package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"grapevine/gossip/member"
	"grapevine/node/config"
	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// roster is one version of the backends: the agreed list or, before that is known, the node's own.
// Only the links change.
type roster struct {
	version uint64 // of the agreed state; 0: the node's own list
	list    []*upstream
	byID    []*upstream
	byKey   map[uint32]*upstream
	rules   []policy.Rule
	ruled   raftstore.Rules // source of rules; empty text: the node's own
	// open: a backend declares no models, so unlisted ones may exist.
	open bool
}

type upstream struct {
	Backend
	id         prefixtree.Backend // this node's number; see backends.Registry
	key        uint32             // prefixtree.BackendKey of its name
	generation uint32
	state      policy.State
	since      prefixtree.Time    // see policy.Backend.Since
	agreed     *raftstore.Backend // nil: from the node's own list
	target     proxy.Target
	*link
}

// link is what outlives rosters while a backend's URL stays. fleet.mu guards the engine's answers.
type link struct {
	url      string
	tls      *tls.Config  // nil: no TLS
	client   *http.Client // for polling the engine
	found    []string     // models that it listed; nil if it never answered
	failure  string       // of the last query for models; "" if it succeeded
	answered answering    // outcome of that query
	report   report       // last reported load
}

type answering uint8

const (
	notAsked answering = iota
	tells
	silent
)

// local is configuration that never leaves this node.
type local struct {
	apiKey, caFile string
	roots          *x509.CertPool // nil: the system's
}

func readLocals(backends []Backend) (map[string]local, error) {
	locals := make(map[string]local)
	for i := range backends {
		b := &backends[i]
		if b.APIKey == "" && b.APIKeyFile == "" && b.CAFile == "" {
			continue
		}
		l := local{apiKey: b.APIKey, caFile: b.CAFile}
		if b.APIKeyFile != "" {
			text, err := member.ReadSecret(b.APIKeyFile, config.MaxSecretFile)
			if err != nil {
				return nil, fmt.Errorf("backend %s: api_key_file: %w", b.Name, err)
			}
			if l.apiKey = strings.TrimSpace(string(text)); l.apiKey == "" || !config.HeaderWord(l.apiKey) {
				return nil, fmt.Errorf("backend %s: api_key_file %s: want one word of visible ASCII", b.Name, b.APIKeyFile)
			}
		}
		if b.CAFile != "" {
			pem, err := os.ReadFile(b.CAFile)
			if err != nil {
				return nil, fmt.Errorf("backend %s: ca_file: %w", b.Name, err)
			}
			l.roots = x509.NewCertPool()
			if !l.roots.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("backend %s: ca_file %s holds no certificate", b.Name, b.CAFile)
			}
		}
		locals[b.Name] = l
	}
	return locals, nil
}

// firstGeneration is what the store gives a new backend.
const firstGeneration = 1

// configuredRoster makes the roster of the node's own list. Its error names backends left out.
func (f *fleet) configuredRoster() (*roster, error) {
	ups := make([]*upstream, len(f.backends))
	for i := range f.backends {
		ups[i] = &upstream{Backend: f.backends[i], generation: firstGeneration}
	}
	ups, err := f.number(ups)
	return f.newRoster(0, ups, f.rules), err
}

// agreedRoster makes the roster of the agreed state. If its rules do not parse (a later release may
// have written them), the node's own rules stay in force. The error names these rules and backends
// left out.
func (f *fleet) agreedRoster(s *raftstore.State) (*roster, error) {
	ups, all := make([]*upstream, len(s.Backends)), make([]upstream, len(s.Backends))
	for i := range s.Backends {
		b := &s.Backends[i]
		ups[i] = &all[i]
		all[i] = upstream{
			Backend:    Backend{URL: b.URL, Name: b.Name, Models: b.Models, Weight: b.Weight, KVTokens: int(min(b.KVTokens, maxKVTokens))},
			generation: b.Generation, state: stateOfBackend(b.State), agreed: b,
		}
	}
	ups, errNumbers := f.number(ups)
	for _, u := range ups {
		u.since = f.since(u)
	}
	rules, err := f.rulesOf(s)
	r := f.newRoster(s.Version, ups, rules)
	if r.ruled = s.Rules; err != nil {
		r.ruled.Text = ""
	}
	return r, errors.Join(err, errNumbers)
}

func (f *fleet) number(ups []*upstream) ([]*upstream, error) {
	names := make([]string, len(ups))
	for i, u := range ups {
		names[i] = u.Name
	}
	numbers, refused := f.numbers.List(names)
	var errs []error
	numbered := ups[:0]
	for i, u := range ups {
		if refused[i] != nil {
			errs = append(errs, fmt.Errorf("no request goes to backend %s: %w", u.Name, refused[i]))
			continue
		}
		u.id, u.key = numbers[i], prefixtree.BackendKey(u.Name)
		numbered = append(numbered, u)
	}
	return numbered, errors.Join(errs...)
}

func (f *fleet) rulesOf(s *raftstore.State) ([]policy.Rule, error) {
	if s.Rules.Text == "" {
		return f.rules, nil
	}
	rules, err := config.ParseRules(s.Rules.Text)
	if err != nil {
		return f.rules, fmt.Errorf("agreed rules of version %d: %w", s.Rules.Version, err)
	}
	return policyRules(rules), nil
}

func stateOfBackend(s raftstore.BackendState) policy.State {
	switch s {
	case raftstore.Active:
		return policy.Active
	case raftstore.Draining:
		return policy.Draining
	}
	return policy.Down // including states of later releases
}

// returned is the start of slow start: the backend was added, restarted or resumed. It is 0 for the
// first generation of configured backends, all of which are cold.
func returned(b *raftstore.Backend) prefixtree.Time {
	if b.State != raftstore.Active || b.Source == raftstore.Static && b.Generation == firstGeneration && b.Reason == "" {
		return 0
	}
	return prefixtree.Time(b.Since)
}

// since is returned, or when this node saw a new generation. It is never in the future, since other
// clocks may be ahead.
func (f *fleet) since(u *upstream) prefixtree.Time {
	since := returned(u.agreed)
	if since > 0 {
		since = min(since, now())
	}
	old := f.roster().at(u.id)
	switch {
	case old == nil || old.agreed == nil:
		return since
	case old.generation != u.generation:
		return now()
	case returned(old.agreed) == returned(u.agreed):
		return old.since
	}
	return max(since, old.since)
}

func (f *fleet) newRoster(version uint64, ups []*upstream, rules []policy.Rule) *roster {
	r := &roster{version: version, list: ups, rules: rules, open: len(ups) == 0, byKey: make(map[uint32]*upstream, len(ups))}
	old := f.current.Load()
	top := 0
	for _, u := range ups {
		top = max(top, int(u.id)+1)
	}
	r.byID = make([]*upstream, top)
	for _, u := range ups {
		l := f.locals[u.Name]
		u.APIKey, u.CAFile = l.apiKey, l.caFile
		if was := old.at(u.id); was != nil && was.url == u.URL {
			u.link = was.link
			u.target = proxy.Target{ID: u.id, Name: u.Name, Addr: was.target.Addr, Host: was.target.Host, BasePath: was.target.BasePath, TLS: u.tls}
		} else {
			addr, host, base, secure := u.Address()
			u.link = f.newLink(u.URL, l, host, secure)
			u.target = proxy.Target{ID: u.id, Name: u.Name, Addr: addr, Host: host, BasePath: base, TLS: u.tls}
		}
		if u.APIKey != "" {
			u.target.Header = [][2]string{{"Authorization", "Bearer " + u.APIKey}}
		}
		r.byID[u.id], r.byKey[u.key] = u, u
		r.open = r.open || len(u.Models) == 0
	}
	return r
}

func (f *fleet) newLink(to string, l local, host string, secure bool) *link {
	n := &link{url: to}
	if secure {
		n.tls = &tls.Config{ServerName: (&url.URL{Host: host}).Hostname(), MinVersion: tls.VersionTLS12, RootCAs: l.roots}
	}
	n.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: n.tls.Clone(), MaxIdleConns: 1, IdleConnTimeout: f.idle,
		Proxy: nil,
	}}
	return n
}

// at returns nil if there is no such upstream; r may be nil.
func (r *roster) at(id prefixtree.Backend) *upstream {
	if r == nil || int(id) >= len(r.byID) {
		return nil
	}
	return r.byID[id]
}

func (r *roster) names() []string {
	names := make([]string, len(r.list))
	for i, u := range r.list {
		names[i] = u.Name
	}
	return names
}

func (r *roster) named(name string) *upstream {
	for _, u := range r.list {
		if u.Name == name {
			return u
		}
	}
	return nil
}

// policyBackends is the policy's input. fleet.mu must be held.
func (r *roster) policyBackends() []policy.Backend {
	list := make([]policy.Backend, len(r.list))
	for i, u := range r.list {
		list[i] = policy.Backend{
			ID: u.id, Generation: u.knownGeneration(), Name: u.Name, Models: u.models(), Weight: u.Weight, State: u.eligible(),
			KVTokens: u.kvTokens(), Since: u.since, Handle: &u.target,
		}
	}
	return list
}

// knownGeneration is 0 until the fleet's state is known; facts learned before stay valid.
func (u *upstream) knownGeneration() uint32 {
	if u.agreed == nil {
		return 0
	}
	return u.generation
}

// lastResort says whether only health took the backend down. The policy uses such a backend if no
// other is left, since the request would fail anyway.
func (u *upstream) lastResort() bool {
	return u.downByHealth() && !u.agreed.Drained
}

func (u *upstream) downByHealth() bool {
	return u.state == policy.Down && u.agreed != nil && u.agreed.DownBy == raftstore.ByHealth
}

// eligible is the backend's state for the policy. A last resort is active, but avoided
// (checker.resort).
func (u *upstream) eligible() policy.State {
	if u.lastResort() {
		return policy.Active
	}
	return u.state
}

// models are the declared or else the listed models; nil means any. fleet.mu must be held.
func (u *upstream) models() []string {
	if len(u.Models) > 0 {
		return u.Models
	}
	return u.found
}

// kvTokens is the declared or else the reported capacity; 0 is unknown. fleet.mu must be held.
func (u *upstream) kvTokens() int {
	if u.KVTokens > 0 {
		return u.KVTokens
	}
	return int(u.link.report.KVTokens)
}

func equalBackends(a, b []policy.Backend) bool {
	return slices.EqualFunc(a, b, func(x, y policy.Backend) bool {
		return x.ID == y.ID && x.Generation == y.Generation && x.Name == y.Name && slices.Equal(x.Models, y.Models) &&
			x.Weight == y.Weight && x.State == y.State && x.KVTokens == y.KVTokens && x.Since == y.Since && sameTarget(x.Handle, y.Handle)
	})
}

func sameTarget(a, b any) bool {
	x, y := a.(*proxy.Target), b.(*proxy.Target)
	return x.Addr == y.Addr && x.Host == y.Host && x.BasePath == y.BasePath && x.TLS == y.TLS && slices.Equal(x.Header, y.Header)
}

func policyRules(rules []Rule) []policy.Rule {
	var out []policy.Rule
	for _, r := range rules {
		out = append(out, policy.Rule{
			Model: r.Model, PathPrefix: r.Path, Header: r.Header, HeaderValue: r.HeaderValue, Strategy: r.Strategy,
		})
	}
	return out
}

func sameURL(a, b string) bool {
	x, errX := raftstore.NormalURL(a)
	y, errY := raftstore.NormalURL(b)
	return errX == nil && errY == nil && strings.EqualFold(x, y)
}
