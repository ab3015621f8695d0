package backends

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/config"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

func newDirectory(tb testing.TB, own ...config.Backend) (*Directory, *atomic.Pointer[policy.View]) {
	tb.Helper()
	for i := range own {
		if err := own[i].Check(); err != nil {
			tb.Fatal(err)
		}
	}
	view := new(atomic.Pointer[policy.View])
	d, err := NewDirectory(Config{
		Own: own, Numbers: NewRegistry(8000, func(Number) bool { return true }, time.Now), Log: zerolog.Nop(),
		Publish: func(_, _ *Roster, v *policy.View) {
			if v != nil {
				view.Store(v)
			}
		},
		Reported: func(*Engine, *Load, bool) {}, Nodes: func() int { return 1 },
	})
	if err == nil {
		err = d.Publish()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.Close)
	return d, view
}

func adopt(tb testing.TB, d *Directory, s *raftstore.State) {
	tb.Helper()
	if err := d.Adopt(s); err != nil {
		tb.Fatal(err)
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

// BenchmarkLearnAll takes first model lists of 2,000 engines, as at a start.
func BenchmarkLearnAll(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		d, v := newDirectory(b)
		s := agreedState(2000, 1)
		s.Version = 1
		for i := range s.Backends {
			s.Backends[i].Models = nil
		}
		adopt(b, d, s)
		b.StartTimer()
		var wg sync.WaitGroup
		slots := make(chan struct{}, askers)
		for i, u := range d.Roster().List {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if _, _, err := d.learnModels(u, []listedModel{{id: "all"}, {id: fmt.Sprintf("m%d", i%8)}}, nil); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		if got := len(v.Load().Models()); got != 9 {
			b.Fatalf("%d models are known, want 9", got)
		}
	}
}

// TestLearningAtOnce: concurrent reports share views, and each is in the view on return.
func TestLearningAtOnce(t *testing.T) {
	const engines, tellers = 40, 8
	d, v := newDirectory(t)
	s := agreedState(engines, 1)
	s.Version = 1
	for i := range s.Backends {
		s.Backends[i].Models = nil
	}
	adopt(t, d, s)
	publish, views := d.cfg.Publish, 0
	d.cfg.Publish = func(old, now *Roster, v *policy.View) { // under d.mu
		views++
		publish(old, now, v)
	}
	list := d.Roster().List
	var wg sync.WaitGroup
	for teller := range tellers {
		wg.Go(func() {
			for i := teller; i < engines; i += tellers {
				model := fmt.Sprint("m", i)
				if changed, _, err := d.learnModels(list[i], []listedModel{{id: model}}, nil); !changed || err != nil {
					t.Errorf("engine %d: %v %v", i, changed, err)
				}
				if !slices.Contains(v.Load().Models(), model) {
					t.Errorf("engine %d has told of %s, and the view does not have it", i, model)
				}
				if _, err := d.learnLoad(list[i], Load{Metrics: engine.Metrics{KVTokens: int64(1000 + i)}, From: FromMetrics}); err != nil {
					t.Errorf("engine %d: %v", i, err)
				}
				if b, ok := v.Load().Backend(list[i].ID); !ok || b.KVTokens != 1000+i {
					t.Errorf("engine %d: %+v", i, b)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d views for %d news", views, 2*engines)
}

func TestOneViewForAll(t *testing.T) {
	d, v := newDirectory(t, config.Backend{URL: "http://127.0.0.3:1"}, config.Backend{URL: "http://127.0.0.3:2"}, config.Backend{URL: "http://127.0.0.3:3"})
	publish, views := d.cfg.Publish, 0
	d.cfg.Publish = func(old, now *Roster, v *policy.View) {
		views++
		publish(old, now, v)
	}
	list := d.Roster().List
	for _, u := range list {
		d.noteModels(u, []listedModel{{id: u.Name}}, nil)
	}
	for range list {
		if err := d.refresh(); err != nil {
			t.Error(err)
		}
	}
	if got := len(v.Load().Models()); views != 1 || got != len(list) {
		t.Errorf("%d views with %d models, want one with all", views, got)
	}
}
