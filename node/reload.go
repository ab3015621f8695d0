package node

import (
	"errors"
	"maps"
	"slices"

	"grapevine/node/config"
)

// Reloaded lists the settings that differ from those in force before.
type Reloaded struct {
	Applied     []string // now in force
	AtNextStart []string // waiting for the next start
}

// Reload applies settings with Setting.Reload "yes", API keys, and the content of certificate and
// key files. If a file cannot be read, nothing changes. Running requests may keep their old limits.
func (n *Node) Reload(next Config) (Reloaded, error) {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	now := *n.running.Load()
	level, errLevel := config.ParseLevel(next.LogLevel)
	cert, errCert := n.readCertificate()
	locals, errKeys := n.fleet.keysFrom(next.Backends)
	if err := errors.Join(errLevel, errCert, errKeys); err != nil {
		return Reloaded{}, err
	}
	var out Reloaded
	differing := now.Differing(next)
	for _, s := range config.Settings() {
		if !slices.Contains(differing, s.Key) {
			continue
		}
		switch s.Reload {
		case config.ReloadValue:
			now.Overlay(next, s.Key)
			out.Applied = append(out.Applied, s.Key)
		case config.ReloadKeys:
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
		n.cfg.Level.Set(level)
	}
	n.useCertificate(cert)
	n.running.Store(&now)
	return out, nil
}

// Running is the configuration in force; read only.
func (n *Node) Running() *Config { return n.running.Load() }

func sameButKey(a, b Backend) bool {
	return a.URL == b.URL && a.Name == b.Name && slices.Equal(a.Models, b.Models) && a.Weight == b.Weight &&
		a.KVTokens == b.KVTokens && a.CAFile == b.CAFile
}

// keysFrom reads API keys. CA files stay, because connections were verified with them.
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

// setLocals replaces the backends' local settings for new requests and returns whether they
// changed.
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

func (f *fleet) localOf(name string) local {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.locals[name]
}
