package health

import (
	"time"

	"grapevine.example/node/backends"
	"grapevine.example/node/metrics"
	"grapevine.example/proxy/engine"
)

func (c *Checker) Verdict(e *backends.Engine) (Verdict, bool) {
	return c.board.Verdict(e.Key, time.Now())
}

// Probes reports whether this node is one of those that probe the engine.
func (c *Checker) Probes(e *backends.Engine) bool { return c.board.Mine(e.Key) }

// Collect adds the series of the engines that this node probes.
func (c *Checker) Collect(s metrics.Scrape) {
	failing := s.Gauge("backend_failing", "1 while this node's own probes or requests find the backend failing.", "backend")
	avoided := s.Gauge("backend_reported", "1 while this node avoids the backend because of probes or of peers' reports.", "backend")
	for _, e := range c.cfg.Backends.Roster().List {
		if !c.Probes(e) {
			continue
		}
		v, _ := c.Verdict(e)
		failing(metrics.Bool(v.Failing), e.Name)
		avoided(metrics.Bool(v.Avoid), e.Name)
	}
	probes := s.Counter("probes_total", "Probes of this node, by result.", "found")
	for found := range c.probes {
		name := "ok"
		if found != int(engine.Alive) {
			name = reasonOf[found].String()
		}
		probes(float64(c.probes[found].Load()), name)
	}
	commits := s.Counter("health_writes_total", "Backends that this node's health checks changed in the agreed state: down, up, or generation (the engine restarted).", "what")
	commits(float64(c.downs.Load()), "down")
	commits(float64(c.ups.Load()), "up")
	commits(float64(c.raised.Load()), "generation")
	s.Counter("health_write_failures_total", "Changes of the agreed state by health checks that failed; the node retries them.")(float64(c.failed.Load()))
}
