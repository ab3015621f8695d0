package gossip

import (
	"testing"
	"testing/synctest"
	"time"
)

// A node that was stopped for a while finds its peers silent before it has read what they sent meanwhile. The model panics if
// what they sent is taken for the change of a vector that is void.
func TestSilentPeerBeginsAnewWithItsWholeLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		a, b := nodes[0], nodes[1]
		a.know.setLoad(1, 10, 1)
		until(t, time.Second, "load", func() bool { return b.know.peerLoad("n0")[1].Active == 1 })
		release := make(chan struct{})
		b.know.mu.Lock()
		b.know.refuse = func([]byte) bool {
			b.know.mu.Unlock()
			<-release // nothing more is read from n0
			b.know.mu.Lock()
			return false
		}
		b.know.mu.Unlock()
		a.know.learn(1, 1)
		time.Sleep(2 * defaultFlush)
		a.know.setLoad(2, 20, 2) // waits to be read
		until(t, voidAfter+5*time.Second, "load of the silent is void", func() bool { return b.know.peerLoad("n0") == nil })
		b.know.mu.Lock()
		b.know.refuse = nil
		b.know.mu.Unlock()
		close(release)
		until(t, 10*time.Second, "the whole load", func() bool {
			l := b.know.peerLoad("n0")
			return len(l) == 2 && l[1].Active == 1 && l[2].Active == 2
		})
	})
}
