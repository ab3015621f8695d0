package node

import (
	"github.com/rs/zerolog"

	"grapevine/node/machine"
	"grapevine/proxy"
)

// limits are the settings that depend on what the machine has.
type limits struct {
	maxBody, bodyMemory Bytes
	connections         int

	memory      int64 // bytes; 0: unknown
	descriptors int   // 0: unknown
}

// descriptorReserve is how many descriptors at most are kept for all but the data port: the admin API,
// probes, gossip, raft, files.
const descriptorReserve = 1024

// fit lowers what the configuration asks for to what the machine has.
//
// A quarter of the memory is for request bodies: the rest is the tree's, the connections', and the
// collector's, which needs about as much again as is in use. A request takes two descriptors, the
// client's and the engine's. A node that is out of them could not answer its operator, so a quarter, and
// at most descriptorReserve, is left for that.
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

// fitHere is fit for the machine that the node runs on.
func (c *Config) fitHere() limits {
	memory, _ := machine.Memory()
	return c.fit(memory, machine.Descriptors())
}

// warn says what was lowered, and how to have it otherwise.
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
