package node

import (
	"fmt"
	"testing"
	"time"

	"grapevine.example/raftstore"
)

// BenchmarkAdopt measures until decisions use a new state. Goal: 5 ms at 2,000 backends.
func BenchmarkAdopt(b *testing.B) {
	for _, backends := range []int{64, 2000} {
		for _, models := range []int{1, 16} {
			b.Run(fmt.Sprintf("backends=%d/models=%d", backends, models), func(b *testing.B) {
				n, err := New(testConfig())
				if err != nil {
					b.Fatal(err)
				}
				s := agreedState(backends, models)
				b.ReportAllocs()
				for i := range b.N {
					next := *s
					next.Version = uint64(i + 1)
					next.Backends = append([]raftstore.Backend(nil), s.Backends...)
					next.Backends[i%backends].State = raftstore.BackendState(1 + i%2)
					n.adopt(&next)
				}
			})
		}
	}
}

func agreedState(backends, models int) *raftstore.State {
	s := &raftstore.State{}
	for i := range backends {
		s.Backends = append(s.Backends, raftstore.Backend{
			Generation: 1, Name: fmt.Sprintf("gpu-%04d.rack-%02d:8000", i, i/40), URL: fmt.Sprintf("http://gpu-%04d:8000", i), Weight: 1,
			Models: []string{"all", fmt.Sprintf("m%d", i%models)},
		})
	}
	return s
}

func TestAdoptIsQuick(t *testing.T) {
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := agreedState(2000, 4)
	best := time.Hour
	for i := range 5 {
		next := *s
		next.Version = uint64(i + 1)
		next.Backends = append([]raftstore.Backend(nil), s.Backends...)
		next.Backends[i].State = raftstore.Down
		began := time.Now()
		n.adopt(&next)
		best = min(best, time.Since(began))
	}
	if len(n.backends.Roster().List) != 2000 || len(n.router.View().Backends) != 2000 {
		t.Fatal("not adopted")
	}
	t.Logf("2,000 backends in %v", best)
	if best > 2*time.Second {
		t.Errorf("2,000 backends took %v at best", best)
	}
}
