package main

import (
	"os"
	"runtime/debug"

	"github.com/rs/zerolog"
)

// heapFloor is how many bytes of garbage a router may produce before its first collection: by
// default Go would collect several times a second when a thousand clients arrive
// (docs/lab/proxy.md).
const heapFloor = 128 << 20

// ballast counts as live but takes no memory, because it is never touched.
var ballast []byte

// tuneCollector raises the heap floor and, under a cgroup limit, sets a memory limit; a tenth
// remains for thread stacks and socket buffers. GOGC or GOMEMLIMIT disables it.
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
