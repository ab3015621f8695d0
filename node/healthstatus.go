package node

import (
	"math"
	"time"

	"grapevine/node/admin"
	"grapevine/node/backends"
	"grapevine/node/health"
	"grapevine/node/metrics"
	"grapevine/proxy/engine"
)

func (c *checker) status(u *backends.Engine) admin.HealthStatus {
	at := time.Now()
	v, ok := c.board.Verdict(u.Key, at)
	if !ok {
		return admin.HealthStatus{Reporters: []string{}}
	}
	s := admin.HealthStatus{Failing: v.Failing, Avoided: v.Avoid, Reporters: v.Reporters, OK: v.OK, Bad: v.Bad}
	if v.Reason != health.NoReason {
		s.Reason = v.Reason.String()
	}
	if !v.Since.IsZero() {
		s.SinceS = tenths(at.Sub(v.Since))
	}
	if !v.Probed.IsZero() {
		ago := tenths(at.Sub(v.Probed))
		s.ProbedS = &ago
	}
	return s
}

func tenths(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

var ailmentNames = [...]string{
	engine.Alive: "ok", engine.Refused: "refused", engine.NoRoute: "connect", engine.Silent: "timeout", engine.Broken: "reset", engine.Sick: "5xx", engine.Untrusted: "tls",
}

func (c *checker) collect(s metrics.Scrape) {
	failing := s.Gauge("backend_failing", "1 while this node's own probes or requests find the backend failing.", "backend")
	avoided := s.Gauge("backend_reported", "1 while this node avoids the backend because of probes or of peers' reports.", "backend")
	for _, u := range c.engines.Roster().List {
		st := c.status(u)
		failing(metrics.Bool(st.Failing), u.Name)
		avoided(metrics.Bool(st.Avoided), u.Name)
	}
	probes := s.Counter("probes_total", "Probes of this node, by result.", "found")
	for found, name := range ailmentNames {
		probes(float64(c.probes[found].Load()), name)
	}
	commits := s.Counter("health_writes_total", "Backends that this node's health checks changed in the agreed state: down, up, or generation (the engine restarted).", "what")
	commits(float64(c.downs.Load()), "down")
	commits(float64(c.ups.Load()), "up")
	commits(float64(c.raised.Load()), "generation")
	s.Counter("health_write_failures_total", "Changes of the agreed state by health checks that failed; the node retries them.")(float64(c.refused.Load()))
}
