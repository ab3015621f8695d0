package node

import (
	"errors"
	"reflect"
	"slices"

	"grapevine/node/accesslog"
	"grapevine/node/backends"
	"grapevine/node/config"
)

type Reloaded struct {
	Applied     []string // now in force
	AtNextStart []string // waiting for the next start
}

// Reload applies settings with Setting.Reload "yes", engines' API keys and CAs, and certificate and
// key files. After an error nothing has changed. Running requests may keep their old limits and
// connections.
func (n *Node) Reload(next config.Config) (Reloaded, error) {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	now := *n.running.Load()
	level, errLevel := config.ParseLevel(next.LogLevel)
	cert, errCert := n.readCertificate()
	keys, errKeys := backends.ReadKeys(next.Backends)
	stamp, book, errClients := n.clients.read()
	if err := errors.Join(errLevel, errCert, errKeys, errClients); err != nil {
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
			now.Overlay(next, s)
			out.Applied = append(out.Applied, s.Key)
		case config.ReloadKeys:
			if !slices.EqualFunc(now.Backends, next.Backends, sameButKeys) {
				out.AtNextStart = append(out.AtNextStart, s.Key)
			}
		default:
			out.AtNextStart = append(out.AtNextStart, s.Key)
		}
	}
	tuned, err := n.proxyConfig(nil, &now)
	if err != nil {
		return Reloaded{}, err
	}
	which, err := accesslog.Parse(now.AccessLog)
	if err != nil {
		return Reloaded{}, err
	}
	retune, err := n.proxy.Retune(tuned)
	if err != nil {
		return Reloaded{}, err
	}
	if err := n.access.Reopen(); err != nil {
		return Reloaded{}, err
	}
	changed, err := n.backends.SetKeys(keys)
	if err != nil {
		return Reloaded{}, err
	}
	// Nothing below fails.
	retune()
	n.access.Set(which)
	n.accounts.SetPrice(now.GPUHourPrice)
	if book != nil {
		_ = n.clients.adopt(stamp, book, nil, n.useClients)
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
func (n *Node) Running() *config.Config { return n.running.Load() }

func sameButKeys(a, b config.Backend) bool {
	a.APIKey, a.APIKeyFile, a.CAFile = b.APIKey, b.APIKeyFile, b.CAFile
	return reflect.DeepEqual(a, b)
}
