package streams

import (
	"fmt"
	"net"
	"testing"
)

// The backend of a data-parallel rank follows that rank's stream.
func TestRankIsFollowed(t *testing.T) {
	f := newFake(t)
	f.sources = fmt.Sprintf(`{"0":{"endpoint":"tcp://*:1"},"1":{"endpoint":"tcp://*:%d"}}`, f.pub.Addr().(*net.TCPAddr).Port)
	f.http.URL += "#rank=1"
	s := newFleet(t, f, nil)
	f.subscribed()
	eventually(t, "live stream", func() bool {
		f.publish(removedEvent(99))
		return s.status().Known == Exact
	})
}
