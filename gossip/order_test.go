package gossip

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
)

// A paused node finds its peers silent before it reads their waiting frames; the model panics if
// they change a void vector.
func TestSilentPeerBeginsAnewWithItsWholeLoad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
			<-release
			b.know.mu.Lock()
			return false
		}
		b.know.mu.Unlock()
		a.know.learn(1, 1)
		time.Sleep(2 * defaultFlush)
		a.know.setLoad(2, 20, 2)
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

// On the wall clock, since waiting for a lock stops virtual time.
func TestKnowledgeThatIsSlowToTakeOnesLoadHoldsUpNobodyElse(t *testing.T) {
	net := newMemnet(t)
	release, taking := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var slow atomic.Bool
	a, c := net.start("n0", nil), net.start("n2", nil)
	b := net.start("n1", func(c *Config) {
		c.Knowledge.(*model).loadHook = func(origin string) {
			if origin == "n0" && slow.Load() {
				once.Do(func() { close(taking) })
				<-release
			}
		}
	})
	defer stopAll(t, []*testNode{a, b, c})
	wallClock(t, "load", func() bool { return b.know.peerLoad("n0") != nil && len(b.streams()) == 2 })
	slow.Store(true)
	a.know.setLoad(1, 20, 2)
	<-taking
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo()
	for end := time.Now().Add(2 * houseInterval); time.Now().Before(end); {
		b.know.learn(uint64(time.Now().UnixNano()), 1)
		c.know.learn(uint64(time.Now().UnixNano()), 1)
		wallClock(t, "news of the others", func() bool {
			count, sum := b.know.digest()
			n, x := c.know.digest()
			return count == n && sum == x
		})
	}
	if len(b.know.peerLoad("n0")) != 0 {
		t.Error("the load was taken: nothing was tested")
	}
	letGo()
	wallClock(t, "its load in the end", func() bool { return b.know.peerLoad("n0")[1].Active == 2 })
}
