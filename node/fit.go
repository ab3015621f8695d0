package node

import (
	"github.com/rs/zerolog"

	"grapevine/node/machine"
	"grapevine/proxy"
)

type limits struct {
	maxBody, bodyMemory Bytes
	connections         int

	memory      int64 // bytes; 0: unknown
	descriptors int   // 0: unknown
}

// descriptorReserve is for admin API, probes, gossip, raft and files.
const descriptorReserve = 1024

// fit lowers limits to the machine's. Bodies get a quarter of the memory: tree, connections and
// garbage need the rest. A request takes two descriptors; up to a quarter of them stay free, so
// that operators get answers.
func (c *Config) fit(memory int64, descriptors int) limits {
	l := limits{c.MaxBody, c.MaxBodyMemory, c.MaxConnections, memory, descriptors}
	if l.bodyMemory == 0 {
		if l.bodyMemory = Bytes(memory / 4); memory == 0 {
			l.bodyMemory = max(proxy.DefaultMaxBodyMemory, proxy.BodyMemoryShare*l.maxBody)
		}
		l.maxBody = min(l.maxBody, l.bodyMemory/proxy.BodyMemoryShare)
	}
	if descriptors > 0 {
		l.connections = max(1, min(l.connections, (descriptors-min(descriptorReserve, descriptors/4))/2))
	}
	return l
}

func (c *Config) fitHere() limits {
	memory, _ := machine.Memory()
	return c.fit(memory, machine.Descriptors())
}

func (l *limits) warn(c *Config, log zerolog.Logger) {
	if l.maxBody < c.MaxBody {
		log.Warn().Int64("memory_bytes", l.memory).Int64("max_body_bytes", int64(l.maxBody)).Int64("configured_bytes", int64(c.MaxBody)).
			Msg("max_body is lowered: request bodies may use a quarter of the memory, and the largest a third of that; give the node more memory, or set max_body_memory")
	}
	if l.connections < c.MaxConnections {
		log.Warn().Int("descriptors", l.descriptors).Int("max_connections", l.connections).Int("configured", c.MaxConnections).
			Msg("max_connections is lowered to what the limit of open files allows; raise that (LimitNOFILE in a unit, ulimit -n in a shell) to 1024 more than twice max_connections")
	}
}
