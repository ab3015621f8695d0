package health

import (
	"time"

	"grapevine/node/backends"
	"grapevine/node/metrics"
	"grapevine/proxy/engine"
)

func (c *Checker) Verdict(e *backends.Engine) (Verdict, bool) {
	return c.board.Verdict(e.Key, time.Now())
}

var ailmentNames = [...]string{
	engine.Alive: "ok", engine.Refused: "refused", engine.NoRoute: "connect", engine.Silent: "timeout", engine.Broken: "reset", engine.Sick: "5xx", engine.Untrusted: "tls",
}

func (c *Checker) Collect(s metrics.Scrape) {
	failing := s.Gauge("backend_failing", "1 while this node's own probes or requests find the backend failing.", "backend")
	avoided := s.Gauge("backend_reported", "1 while this node avoids the backend because of probes or of peers' reports.", "backend")
	for _, e := range c.cfg.Backends.Roster().List {
		v, _ := c.Verdict(e)
		failing(metrics.Bool(v.Failing), e.Name)
		avoided(metrics.Bool(v.Avoid), e.Name)
	}
	probes := s.Counter("probes_total", "Probes of this node, by result.", "found")
	for found, name := range ailmentNames {
		probes(float64(c.probes[found].Load()), name)
	}
	commits := s.Counter("health_writes_total", "Backends that this node's health checks changed in the agreed state: down, up, or generation (the engine restarted).", "what")
	commits(float64(c.downs.Load()), "down")
	commits(float64(c.ups.Load()), "up")
	commits(float64(c.raised.Load()), "generation")
	s.Counter("health_write_failures_total", "Changes of the agreed state by health checks that failed; the node retries them.")(float64(c.failed.Load()))
}
