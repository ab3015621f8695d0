package config

import (
	"github.com/rs/zerolog"

	"grapevine.example/node/machine"
	"grapevine.example/proxy"
)

// Limits are the configured limits, reduced to what the machine allows.
type Limits struct {
	MaxBody, BodyMemory Bytes
	Connections         int

	memory      int64 // bytes; 0: unknown
	descriptors int   // 0: unknown
}

const descriptorReserve = 1024

// fit gives bodies a quarter of the memory: tree, connections and garbage need the rest. A request
// takes two descriptors.
func (c *Config) fit(memory int64, descriptors int) Limits {
	l := Limits{c.MaxBody, c.MaxBodyMemory, c.MaxConnections, memory, descriptors}
	if l.BodyMemory == 0 {
		if l.BodyMemory = Bytes(memory / 4); memory == 0 {
			l.BodyMemory = max(proxy.DefaultMaxBodyMemory, proxy.BodyMemoryShare*l.MaxBody)
		}
		l.MaxBody = min(l.MaxBody, l.BodyMemory/proxy.BodyMemoryShare)
	}
	if descriptors > 0 {
		l.Connections = max(1, min(l.Connections, (descriptors-min(descriptorReserve, descriptors/4))/2))
	}
	return l
}

// Fit returns the limits on this machine.
func (c *Config) Fit() Limits {
	memory, _ := machine.Memory()
	return c.fit(memory, machine.Descriptors())
}

func (l *Limits) Warn(c *Config, log zerolog.Logger) {
	if l.MaxBody < c.MaxBody {
		log.Warn().Int64("memory_bytes", l.memory).Int64("max_body_bytes", int64(l.MaxBody)).Int64("configured_bytes", int64(c.MaxBody)).
			Msg("max_body is lowered: request bodies may use a quarter of the memory, and the largest a third of that; give the node more memory, or set max_body_memory")
	}
	if l.Connections < c.MaxConnections {
		log.Warn().Int("descriptors", l.descriptors).Int("max_connections", l.Connections).Int("configured", c.MaxConnections).
			Msg("max_connections is lowered to what the limit of open files allows; raise that (LimitNOFILE in a unit, ulimit -n in a shell) to 1024 more than twice max_connections")
	}
}
