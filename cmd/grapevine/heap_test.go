package main

import (
	"bytes"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestTuneCollector(t *testing.T) {
	defer func() { ballast = nil; debug.SetMemoryLimit(math.MaxInt64) }()
	next := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NextGC
	}
	var log bytes.Buffer
	tune := func(limited bool) { tuneCollector(1<<30, limited, zerolog.New(&log)) }
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv("GOGC", "")
		t.Setenv("GOMEMLIMIT", "")
		t.Setenv(name, "100")
		if tune(true); ballast != nil || debug.SetMemoryLimit(-1) != math.MaxInt64 {
			t.Errorf("%s is set and the collector was tuned all the same", name)
		}
	}
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	before := next()
	tune(false)
	if after := next(); after < 2*heapFloor || after < before+heapFloor {
		t.Errorf("next collection at %d bytes, %d before; want at least %d", after, before, 2*heapFloor)
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 || log.Len() > 0 {
		t.Errorf("without a cgroup's limit the memory is limited to %d: %s", limit, log.String())
	}
	tune(true)
	if limit := debug.SetMemoryLimit(-1) - heapFloor; limit < 1<<30*89/100 || limit > 1<<30*91/100 {
		t.Errorf("limit %d of a cgroup of 1 GiB", limit)
	}
	if strings.Count(log.String(), "cgroup_bytes") != 1 {
		t.Errorf("log %q", log.String())
	}
}
