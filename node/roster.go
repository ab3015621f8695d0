package node

import (
	"crypto/tls"
	"crypto/x509"
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
	names   *backendNames
	rules   []policy.Rule
	ruled   raftstore.Rules // what rules were made from; no text: they are the node's own
	// open: not every model there is, is declared: one that is not listed may exist all the same.
	open bool
	// before is the roster that this one replaced, without its own: a decision may
	// just have been made by the view that went with it.
	before *roster
}

// upstream is one backend of a roster.
type upstream struct {
	Backend
	id         prefixtree.Backend // as this node counts; see placement
	generation uint32
	born       uint32 // generation under which this node first knew the id
	kept       bool   // it was of the node's own list until this roster
	renamed    bool   // kept, and under another name there
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

// placements give backends the ids by which this node, and nobody else, knows them.
// A backend of its own list keeps its id when the fleet agrees on it, by whatever
// name: what is known of the backend, what waits to be told of it, and requests that
// are on their way to it outlast the change. An id that the fleet agreed on has the same one here for
// ever, so that generations grow here as they do there.
type placements struct {
	own    map[string]ownPlace  // of the node's own list, by URL (raftstore.NormalURL), that the fleet has not agreed on yet
	agreed map[uint16]placement // by agreed id
	next   prefixtree.Backend
}

type ownPlace struct {
	id   prefixtree.Backend
	name string
}

type placement struct {
	id   prefixtree.Backend
	born uint32 // the generation at first
}

// newPlacements gives the node's own list the first ids, in its order.
func newPlacements(backends []Backend) placements {
	p := placements{own: make(map[string]ownPlace, len(backends)), agreed: make(map[uint16]placement)}
	for i := range backends {
		if url, err := raftstore.NormalURL(backends[i].URL); err == nil {
			if _, twice := p.own[url]; !twice {
				p.own[url] = ownPlace{p.next, backends[i].Name}
			}
		}
		p.next++
	}
	return p
}

// place returns where a backend is here and, if it keeps what it had in the node's own
// list until now, its name there, else none. It is the URL that tells an engine: the
// fleet may know it by another name, and another engine by that.
func (p *placements) place(b *raftstore.Backend) (at placement, was string) {
	if at, ok := p.agreed[b.ID]; ok {
		return at, ""
	}
	at = placement{p.next, b.Generation}
	url, err := raftstore.NormalURL(b.URL)
	if own, listed := p.own[url]; err == nil && listed {
		delete(p.own, url)
		at.id, was = own.id, own.name
	} else {
		p.next++
	}
	p.agreed[b.ID] = at
	return at, was
}

// maxPlaces is how many ids a node may come to need.
func (c *Config) maxPlaces() int { return raftstore.MaxBackends + len(c.Backends) }

// firstGeneration is what the store gives a backend that is the first under its id.
const firstGeneration = 1

// configured makes the roster of the node's own list.
func (f *fleet) configuredRoster() *roster {
	ups := make([]*upstream, len(f.backends))
	for i := range f.backends {
		ups[i] = &upstream{Backend: f.backends[i], id: prefixtree.Backend(i), generation: firstGeneration, born: firstGeneration}
	}
	return f.newRoster(0, ups, f.rules)
}

// agreedRoster makes the roster of what the fleet has agreed on. Rules that do
// not parse are the ones of a later release; the node's own stay in force then.
func (f *fleet) agreedRoster(s *raftstore.State) (*roster, error) {
	ups, all := make([]*upstream, len(s.Backends)), make([]upstream, len(s.Backends))
	for i := range s.Backends {
		b := &s.Backends[i]
		at, was := f.places.place(b)
		ups[i] = &all[i]
		all[i] = upstream{
			Backend: Backend{URL: b.URL, Name: b.Name, Models: b.Models, Weight: b.Weight, KVTokens: int(min(b.KVTokens, maxKVTokens))},
			id:      at.id, generation: b.Generation, born: at.born, kept: was != "", renamed: was != "" && was != b.Name, state: stateOfBackend(b.State), since: f.since(b, at.id), agreed: b,
		}
	}
	slices.SortFunc(ups, func(a, b *upstream) int { return int(a.agreed.ID) - int(b.agreed.ID) })
	rules, err := f.rulesOf(s)
	r := f.newRoster(s.Version, ups, rules)
	if r.ruled = s.Rules; err != nil {
		r.ruled.Text = ""
	}
	return r, err
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
func (f *fleet) since(b *raftstore.Backend, id prefixtree.Backend) prefixtree.Time {
	since := returned(b)
	if since > 0 {
		since = min(since, now())
	}
	u := f.roster().at(id)
	switch {
	case u == nil || u.Name != b.Name || u.agreed == nil:
		return since
	case u.generation != b.Generation:
		return now()
	case returned(u.agreed) == returned(b):
		return u.since
	}
	return max(since, u.since)
}

// newRoster completes the upstreams: links of before, or new ones, and targets.
func (f *fleet) newRoster(version uint64, ups []*upstream, rules []policy.Rule) *roster {
	r := &roster{version: version, list: ups, rules: rules, open: len(ups) == 0}
	known := make(map[string]*upstream)
	if old := f.current.Load(); old != nil {
		known = make(map[string]*upstream, len(old.list))
		for _, u := range old.list {
			known[u.Name] = u
		}
		before := *old
		before.before = nil
		r.before = &before
	}
	top := 0
	for _, u := range ups {
		top = max(top, int(u.id)+1)
	}
	r.byID = make([]*upstream, top)
	for _, u := range ups {
		l := f.locals[u.Name]
		u.APIKey, u.CAFile = l.apiKey, l.caFile
		if old := known[u.Name]; old != nil && old.url == u.URL {
			u.link = old.link
			u.target = proxy.Target{ID: u.id, Name: u.Name, Addr: old.target.Addr, Host: old.target.Host, BasePath: old.target.BasePath, TLS: u.tls}
		} else {
			addr, host, base, secure := u.address()
			u.link = f.newLink(u.URL, l, host, secure)
			u.target = proxy.Target{ID: u.id, Name: u.Name, Addr: addr, Host: host, BasePath: base, TLS: u.tls}
		}
		if u.APIKey != "" {
			u.target.Header = [][2]string{{"Authorization", "Bearer " + u.APIKey}}
		}
		r.byID[u.id] = u
		r.open = r.open || len(u.Models) == 0
	}
	r.names = newBackendNames(ups)
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

// at returns the upstream with that id, nil if there is none.
func (r *roster) at(id prefixtree.Backend) *upstream {
	if int(id) >= len(r.byID) {
		return nil
	}
	return r.byID[id]
}

// hadAnother says whether a roster, which may be nil, had another engine under the id
// of an upstream.
func (r *roster) hadAnother(u *upstream) bool {
	if r == nil {
		return false
	}
	was := r.at(u.id)
	return was != nil && (was.Name != u.Name || was.URL != u.URL)
}

// target is where a decision for a backend of that id and name leads; false if
// it was made too long ago.
func (r *roster) target(id prefixtree.Backend, name string) (proxy.Target, bool) {
	for ; r != nil; r = r.before {
		if u := r.at(id); u != nil && u.Name == name {
			return u.target, true
		}
	}
	return proxy.Target{}, false
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
			// Counted from the first, since requests outlast that the fleet tells how often it has begun anew.
			ID: u.id, Generation: u.generation - u.born, Name: u.Name, Models: u.models(), Weight: u.Weight, State: u.eligible(),
			KVTokens: u.kvTokens(), Since: u.since,
		}
	}
	return list
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
			x.Weight == y.Weight && x.State == y.State && x.KVTokens == y.KVTokens && x.Since == y.Since
	})
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
