package node

import (
	"errors"
	"maps"
	"slices"
)

// Ways in which a setting takes part in a reload, as Setting.Reload says them. Empty: it
// does not, and a change of it waits for the next start.
const (
	reloadValue = "yes"     // its value is taken
	reloadFile  = "file"    // the file that it names is read again; another name waits
	reloadKeys  = "api_key" // of backends: api_key, and what api_key_file holds
)

// Reloaded is what became of the settings that differ from those in force.
type Reloaded struct {
	Applied     []string // keys that are in force now
	AtNextStart []string // keys that wait for the next start
}

// Reload takes what can change while the node runs from a validated configuration:
// settings whose Setting.Reload is "yes", the api_key of each backend, and what the files
// of certificates and keys hold now. A file that cannot be read is an error and changes
// nothing. A running request may end by the limits that it began with.
func (n *Node) Reload(next Config) (Reloaded, error) {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	now := *n.running.Load()
	level, errLevel := parseLevel(next.LogLevel)
	cert, errCert := n.readCertificate()
	locals, errKeys := n.fleet.keysFrom(next.Backends)
	if err := errors.Join(errLevel, errCert, errKeys); err != nil {
		return Reloaded{}, err
	}
	var out Reloaded
	differing := now.Differing(next)
	for _, s := range Settings() {
		if !slices.Contains(differing, s.Key) {
			continue
		}
		switch s.Reload {
		case reloadValue:
			now.Overlay(next, s.Key)
			out.Applied = append(out.Applied, s.Key)
		case reloadKeys:
			if !slices.EqualFunc(now.Backends, next.Backends, sameButKey) {
				out.AtNextStart = append(out.AtNextStart, s.Key)
			}
		default:
			out.AtNextStart = append(out.AtNextStart, s.Key)
		}
	}
	tuned, err := n.proxyConfig(nil, &now)
	if err == nil {
		err = n.proxy.Retune(tuned)
	}
	if err != nil {
		return Reloaded{}, err
	}
	changed, err := n.fleet.setLocals(locals)
	if err != nil {
		return Reloaded{}, err
	}
	if changed {
		out.Applied = append(out.Applied, "backends")
	}
	if n.cfg.Level != nil {
		n.cfg.Level.set(level)
	}
	n.useCertificate(cert)
	n.running.Store(&now)
	return out, nil
}

// Running is the configuration in force: that of New with what Reload has taken since.
// It must not be changed.
func (n *Node) Running() *Config { return n.running.Load() }

// sameButKey compares two backends without what Reload takes of them.
func sameButKey(a, b Backend) bool {
	return a.URL == b.URL && a.Name == b.Name && slices.Equal(a.Models, b.Models) && a.Weight == b.Weight &&
		a.KVTokens == b.KVTokens && a.CAFile == b.CAFile
}

// keysFrom reads the keys of backends as they are configured now. How a backend is
// verified stays as it was: connections of its link are made by that.
func (f *fleet) keysFrom(backends []Backend) (map[string]local, error) {
	keys := slices.Clone(backends)
	for i := range keys {
		keys[i].CAFile = ""
	}
	locals, err := readLocals(keys)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, old := range f.locals {
		if old.caFile != "" {
			l := locals[name]
			l.caFile, l.roots = old.caFile, old.roots
			locals[name] = l
		}
	}
	return locals, nil
}

// setLocals replaces what this node knows of backends by itself, and says whether that
// changes anything. Requests that are sent from then on carry the new keys.
func (f *fleet) setLocals(locals map[string]local) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if maps.Equal(f.locals, locals) {
		return false, nil
	}
	f.locals = locals
	old := f.roster()
	ups := make([]*upstream, len(old.list))
	for i, u := range old.list {
		again := *u
		ups[i] = &again
	}
	next := f.newRoster(old.version, ups, old.rules)
	next.ruled = old.ruled
	return true, f.changeLocked(next)
}

// localOf is what this node knows by itself of the backend of that name.
func (f *fleet) localOf(name string) local {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.locals[name]
}
