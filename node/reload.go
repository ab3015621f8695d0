package node

import (
	"errors"
	"reflect"
	"slices"
	"time"

	"grapevine.example/node/accesslog"
	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/node/traces"
)

// Reloaded says what a reload did with the settings that differ.
type Reloaded struct {
	Applied     []admin.SettingChange // now in force
	AtNextStart []admin.SettingChange // waiting for the next start
}

// lastReload is immutable.
type lastReload struct {
	at   time.Time
	err  error    // why it was refused; else nil
	done Reloaded // by the last reload that was not refused
}

// Reload applies settings with Setting.Reload "yes", engines' API keys and CAs, and certificate and
// key files. next is validated. After an error nothing has changed. Running requests may keep their old
// limits and connections.
func (n *Node) Reload(next config.Config) (Reloaded, error) {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	old := n.running.Load()
	now, done := merge(*old, next)
	level, errLevel := config.ParseLevel(now.LogLevel)
	cert, errCert := n.readCertificate()
	keys, errKeys := backends.ReadKeys(next.Backends)
	stamp, book, errClients := n.clients.read()
	which, errWhich := accesslog.Parse(now.AccessLog)
	collector, errCollector := collectorOf(&now)
	if err := errors.Join(errLevel, errCert, errKeys, errClients, errWhich, errCollector); err != nil {
		return Reloaded{}, err
	}
	tuned, err := n.proxyConfig(nil, &now)
	if err != nil {
		return Reloaded{}, err
	}
	retune, err := n.proxy.Retune(tuned)
	if err != nil {
		return Reloaded{}, err
	}
	reroute, err := n.router.Retune(n.policyConfig(&now))
	if err != nil {
		return Reloaded{}, err
	}
	lines, err := n.access.Prepare(now.AccessLogFile)
	if err != nil {
		return Reloaded{}, err
	}
	defer lines.Discard()
	changed, err := n.backends.SetKeys(keys)
	if err != nil {
		return Reloaded{}, err
	}
	// Nothing below fails.
	retune()
	reroute()
	n.health.Retune(probingOf(&now))
	lines.Use()
	n.access.Set(which)
	n.accounts.SetPrice(now.GPUHourPrice)
	n.doctor.SetRate(now.DoctorSamples)
	n.traces.Use(collector)
	if book != nil {
		_ = n.clients.adopt(stamp, book, nil, n.useClients)
	}
	if changed {
		done.Applied = append(done.Applied, admin.SettingChange{Key: "backends", From: "credentials", To: "other credentials"})
	}
	if n.cfg.LogSwitch != nil {
		n.cfg.LogSwitch.Set(level, now.LogFormat)
	}
	n.useCertificate(cert)
	n.running.Store(&now)
	close(*n.retuned.Swap(new(make(chan struct{}))))
	n.reloaded.Store(&lastReload{at: time.Now(), done: done})
	if now.Fit() != old.Fit() {
		n.warnLimits(&now)
	}
	return done, nil
}

// collectorOf reads the file of the collector's headers.
func collectorOf(c *config.Config) (*traces.Target, error) {
	headers, err := c.OTLPHeaders()
	if err != nil {
		return nil, err
	}
	return traces.NewTarget(c.OTLPEndpoint, headers)
}

// merge returns the configuration in force after a reload. Of the backends it says only that others wait for the next start.
func merge(now, next config.Config) (config.Config, Reloaded) {
	var done Reloaded
	old, differing := now, now.Differing(next)
	for _, s := range config.Settings() {
		if !slices.Contains(differing, s.Key) {
			continue
		}
		change := admin.SettingChange{Key: s.Key, From: s.Text(&old), To: s.Text(&next)}
		switch {
		case s.Reload == config.ReloadValue:
			now.Overlay(next, s)
			done.Applied = append(done.Applied, change)
		case s.Reload != config.ReloadKeys || !slices.EqualFunc(now.Backends, next.Backends, sameButKeys):
			done.AtNextStart = append(done.AtNextStart, change)
		}
	}
	return now, done
}

// ReloadRefused notes that a reload failed, before or in Reload, for Status.
func (n *Node) ReloadRefused(err error) {
	n.reloadMu.Lock()
	defer n.reloadMu.Unlock()
	last := lastReload{at: time.Now(), err: err}
	if before := n.reloaded.Load(); before != nil {
		last.done = before.done
	}
	n.reloaded.Store(&last)
}

func (n *Node) reloadStatus() *admin.ReloadStatus {
	last := n.reloaded.Load()
	if last == nil {
		return nil
	}
	s := &admin.ReloadStatus{
		AgeS: tenths(ageS(last.at)), Applied: append([]admin.SettingChange{}, last.done.Applied...), AtNextStart: append([]admin.SettingChange{}, last.done.AtNextStart...),
	}
	if last.err != nil {
		s.Error = last.err.Error()
	}
	return s
}

// Running is the configuration in force; read only.
func (n *Node) Running() *config.Config { return n.running.Load() }

func sameButKeys(a, b config.Backend) bool {
	a.APIKey, a.APIKeyFile, a.CAFile = b.APIKey, b.APIKeyFile, b.CAFile
	return reflect.DeepEqual(a, b)
}
