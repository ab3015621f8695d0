package bubble_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

// With synctest.Test in place of bubble.Test and two Ps, this crashes in half of the runs.
func TestTimersDueAtTheSameInstant(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	for range 20 {
		bubble.Test(t, func(t *testing.T) {
			var clients sync.WaitGroup
			for range 30 {
				clients.Go(func() {
					ticks := time.NewTicker(time.Millisecond)
					defer ticks.Stop()
					for range 50 {
						<-ticks.C
						<-time.After(time.Millisecond)
					}
				})
			}
			clients.Wait()
		})
	}
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("GOMAXPROCS is %d after the bubbles and was %d before", after, before)
	}
}
