package main

import (
	"runtime"
	"testing"
)

func TestHeapFloor(t *testing.T) {
	defer func() { ballast = nil }()
	next := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NextGC
	}
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv("GOGC", "")
		t.Setenv("GOMEMLIMIT", "")
		t.Setenv(name, "100")
		if raiseHeapFloor(); ballast != nil {
			t.Errorf("%s is set and the floor was raised all the same", name)
		}
	}
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	before := next()
	raiseHeapFloor()
	if after := next(); after < 2*heapFloor || after < before+heapFloor {
		t.Errorf("next collection at %d bytes, %d before; want at least %d", after, before, 2*heapFloor)
	}
}
