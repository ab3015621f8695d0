package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"grapevine/gossip/member"
	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// roster is one version of the backends that a node routes to: what the fleet
// has agreed on or, before anything of that is known, the node's own list.
// Immutable but for the links.
type roster struct {
	version uint64 // of the state that it was made from; 0: the node's own list
	list    []*upstream
	byID    []*upstream // nil where there is none
	byKey   map[uint32]*upstream
	rules   []policy.Rule
	ruled   raftstore.Rules // what rules were made from; no text: they are the node's own
	// open: not every model there is, is declared: one that is not listed may exist all the same.
	open bool
}

// upstream is one backend of a roster.
type upstream struct {
	Backend
	id         prefixtree.Backend // this node's number for it; see backends.Registry
	key        uint32             // prefixtree.BackendKey of its name
	generation uint32
	state      policy.State
	since      prefixtree.Time    // see policy.Backend.Since
	agreed     *raftstore.Backend // nil: from the node's own list
	target     proxy.Target
	*link
}

// link is what a node has with a backend for as long as it is reached in one
// way, over all rosters: how it is verified, connections, and what its engine
// has said of itself, which fleet.mu guards.
type link struct {
	url      string
	tls      *tls.Config  // nil: plain
	client   *http.Client // for questions to the engine
	found    []string     // models that it listed; nil if it never answered
	failure  string       // why the last question for them failed, "" if it did not
	answered answering    // the last question for them
	report   report       // what it last said of its load
}

type answering uint8

const (
	notAsked answering = iota
	tells
	silent
)

// local is what a node knows of a backend by itself, whatever the fleet agrees on.
type local struct {
	apiKey, caFile string
	roots          *x509.CertPool // nil: the system's
}

// readLocals reads what the configured backends need that is never shared.
func readLocals(backends []Backend) (map[string]local, error) {
	locals := make(map[string]local)
	for i := range backends {
		b := &backends[i]
		if b.APIKey == "" && b.APIKeyFile == "" && b.CAFile == "" {
			continue
		}
		l := local{apiKey: b.APIKey, caFile: b.CAFile}
		if b.APIKeyFile != "" {
			text, err := member.ReadSecret(b.APIKeyFile, maxTokenFile)
			if err != nil {
				return nil, fmt.Errorf("backend %s: api_key_file: %w", b.Name, err)
			}
			if l.apiKey = strings.TrimSpace(string(text)); l.apiKey == "" || !headerWord(l.apiKey) {
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

// firstGeneration is what the store gives a backend that is the first under its id.
const firstGeneration = 1

// configuredRoster makes the roster of the node's own list. An error names the
// backends that are not in it.
func (f *fleet) configuredRoster() (*roster, error) {
	ups := make([]*upstream, len(f.backends))
	for i := range f.backends {
		ups[i] = &upstream{Backend: f.backends[i], generation: firstGeneration}
	}
	ups, err := f.number(ups)
	return f.newRoster(0, ups, f.rules), err
}

// agreedRoster makes the roster of what the fleet has agreed on. Rules that do
// not parse are the ones of a later release; the node's own stay in force then.
// An error names these, or the backends that are not in the roster.
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

// number gives the upstreams their numbers, and returns those that have one.
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

// rulesOf are the rules that hold under a state: the fleet's if it has any, else
// the node's own.
func (f *fleet) rulesOf(s *raftstore.State) ([]policy.Rule, error) {
	if s.Rules.Text == "" {
		return f.rules, nil
	}
	rules, err := ParseRules(s.Rules.Text)
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
	return policy.Down // and whatever a later release means
}

// returned is from when on a backend is to be given work slowly: it was added to
// a fleet that runs, has been down or drained, or has begun anew. The fleet's
// own list, of which all are as cold, is not.
func returned(b *raftstore.Backend) prefixtree.Time {
	if b.State != raftstore.Active || b.Source == raftstore.Static && b.Generation == firstGeneration && b.Reason == "" {
		return 0
	}
	return prefixtree.Time(b.Since)
}

// since is returned, or when this node learned that the engine has begun anew,
// if that was later. No time is later than now here, whatever the clock said of
// the node that wrote it down.
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

// newRoster completes the upstreams: links of before, or new ones, and targets.
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
			addr, host, base, secure := u.address()
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

func (f *fleet) newLink(url string, l local, host string, secure bool) *link {
	n := &link{url: url}
	if secure {
		n.tls = &tls.Config{ServerName: hostname(host), MinVersion: tls.VersionTLS12, RootCAs: l.roots}
	}
	n.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: n.tls.Clone(), MaxIdleConns: 1, IdleConnTimeout: f.idle,
		// Engines are addressed directly, whatever the environment says of proxies.
		Proxy: nil,
	}}
	return n
}

// at returns the upstream with that number, nil if there is none, as in a nil roster.
func (r *roster) at(id prefixtree.Backend) *upstream {
	if r == nil || int(id) >= len(r.byID) {
		return nil
	}
	return r.byID[id]
}

// named returns the upstream of that name, nil if there is none.
func (r *roster) named(name string) *upstream {
	for _, u := range r.list {
		if u.Name == name {
			return u
		}
	}
	return nil
}

// policyBackends is the roster as the policy sees it; models and capacities are
// what is known now. fleet.mu must be held.
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

// knownGeneration is the generation for tree and policy: 0, unknown, until the fleet has said which it is. What requests have shown of
// the engine until then holds when it is known.
func (u *upstream) knownGeneration() uint32 {
	if u.agreed == nil {
		return 0
	}
	return u.generation
}

// lastResort says whether health, and nobody else, has taken a backend down: it is
// asked when nothing else is left to ask, since half of a fleet's nodes may be wrong
// about half of its engines, and an error is certain otherwise.
func (u *upstream) lastResort() bool {
	return u.downByHealth() && !u.agreed.Drained
}

// downByHealth says whether it is health's word that a backend is down.
func (u *upstream) downByHealth() bool {
	return u.state == policy.Down && u.agreed != nil && u.agreed.DownBy == raftstore.ByHealth
}

// eligible is the state of a backend for the policy. A last resort is active there,
// and left alone; see checker.resort.
func (u *upstream) eligible() policy.State {
	if u.lastResort() {
		return policy.Active
	}
	return u.state
}

// models is what a backend serves as far as is known: as declared, else as its
// engine says; nil: any. fleet.mu must be held.
func (u *upstream) models() []string {
	if len(u.Models) > 0 {
		return u.Models
	}
	return u.found
}

// kvTokens is what a backend's cache holds: as declared, else as its engine says,
// else 0, unknown. fleet.mu must be held.
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

// sameTarget says whether requests are sent in the same way to the targets of two views.
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

// sameURL says whether two URLs reach one engine.
func sameURL(a, b string) bool {
	x, errX := raftstore.NormalURL(a)
	y, errY := raftstore.NormalURL(b)
	return errX == nil && errY == nil && strings.EqualFold(x, y)
}
