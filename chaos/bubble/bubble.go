// Package bubble runs tests in the virtual time of testing/synctest, and without the race detector those that it only slows down.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// procs counts the bubbles that run on one P and keeps the GOMAXPROCS from before the first of them.
var procs struct {
	sync.Mutex
	bubbles, before int
}

// Test runs f in a bubble, as synctest.Test does. In a race build it sets GOMAXPROCS
// to 1 until the last bubble has ended: all timers of a bubble share one context of
// the race detector, and with several Ps two goroutines may fire timers that are due
// at the same instant, at once. That crashes the race detector itself now and then
// (https://go.dev/issue/78156, open in Go 1.26).
// Tests may call it in parallel.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if race {
		onOneP()
		defer onAllPs()
	}
	synctest.Test(t, f)
}

func onOneP() {
	procs.Lock()
	defer procs.Unlock()
	if procs.bubbles == 0 {
		procs.before = runtime.GOMAXPROCS(1)
	}
	procs.bubbles++
}

func onAllPs() {
	procs.Lock()
	defer procs.Unlock()
	procs.bubbles--
	if procs.bubbles == 0 {
		runtime.GOMAXPROCS(procs.before)
	}
}
