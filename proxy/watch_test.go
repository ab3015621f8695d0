package proxy

import (
	"testing"
	"time"
)

// The count grows only while the watch runs.
func TestSweeps(t *testing.T) {
	r := newRig(t, nil)
	seen := r.proxy.Sweeps()
	eventually(t, "the watch goes round", func() bool { return r.proxy.Sweeps() > seen+2 })
	r.proxy.mu.Lock() // blocks every sweep
	seen = r.proxy.Sweeps()
	time.Sleep(10 * r.proxy.cfg.Timeouts.Watch)
	still := r.proxy.Sweeps()
	r.proxy.mu.Unlock()
	if still > seen+1 { // one may have held the lock
		t.Errorf("%d sweeps without the lock", still-seen)
	}
	eventually(t, "the watch goes on", func() bool { return r.proxy.Sweeps() > still })
}
