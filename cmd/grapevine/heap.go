package main

import (
	"os"
	"runtime/debug"

	"github.com/rs/zerolog"
)

// heapFloor is how many bytes of garbage a router may produce before the first collection. Go's
// default keeps the small heap of a new router small, so a thousand clients arriving at once cause
// half a dozen collections within a second. docs/lab/proxy.md has the measurement.
const heapFloor = 128 << 20

// ballast counts as live but is never touched, so it takes address space and no memory.
var ballast []byte

// tuneCollector raises the heap floor and, under a cgroup limit, sets a memory limit, without which
// garbage could grow until the kernel kills the process. A tenth of the cgroup's limit remains for
// thread stacks and socket buffers. It does nothing if GOGC or GOMEMLIMIT is set.
func tuneCollector(memory int64, limited bool, log zerolog.Logger) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return
		}
	}
	ballast = make([]byte, heapFloor)
	if !limited {
		return
	}
	limit := memory - memory/10
	debug.SetMemoryLimit(limit + heapFloor) // the runtime counts the ballast
	log.Info().Int64("cgroup_bytes", memory).Int64("limit_bytes", limit).Msg("the collector keeps the memory below nine tenths of the cgroup's limit; GOMEMLIMIT overrides this")
}
