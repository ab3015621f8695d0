package node

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
)

// BenchmarkLearnAll takes first model lists of 2,000 engines until the view has all, as at a start.
func BenchmarkLearnAll(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		n, err := New(testConfig())
		if err != nil {
			b.Fatal(err)
		}
		s := agreedState(2000, 1)
		s.Version = 1
		for i := range s.Backends {
			s.Backends[i].Models = nil
		}
		n.adopt(s)
		b.StartTimer()
		var wg sync.WaitGroup
		slots := make(chan struct{}, askers)
		for i, u := range n.fleet.roster().list {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if _, _, err := n.fleet.learnModels(u, []listedModel{{id: "all"}, {id: fmt.Sprintf("m%d", i%8)}}, nil); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		if got := len(n.router.View().Models()); got != 9 {
			b.Fatalf("%d models are known, want 9", got)
		}
	}
}

// TestLearningAtOnce: concurrent reports share views, and each is in the view on return.
func TestLearningAtOnce(t *testing.T) {
	const engines, tellers = 40, 8
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := agreedState(engines, 1)
	s.Version = 1
	for i := range s.Backends {
		s.Backends[i].Models = nil
	}
	n.adopt(s)
	publish, views := n.fleet.publish, 0
	n.fleet.publish = func(old, now *roster, v *policy.View) { // under fleet.mu
		views++
		publish(old, now, v)
	}
	list := n.fleet.roster().list
	var wg sync.WaitGroup
	for teller := range tellers {
		wg.Go(func() {
			for i := teller; i < engines; i += tellers {
				model := fmt.Sprint("m", i)
				if changed, _, err := n.fleet.learnModels(list[i], []listedModel{{id: model}}, nil); !changed || err != nil {
					t.Errorf("engine %d: %v %v", i, changed, err)
				}
				if !slices.Contains(n.router.View().Models(), model) {
					t.Errorf("engine %d has told of %s, and the view does not have it", i, model)
				}
				if resized, err := n.fleet.learnMetrics(list[i], engine.Metrics{KVTokens: int64(1000 + i)}, time.Now()); !resized || err != nil {
					t.Errorf("engine %d: %v %v", i, resized, err)
				}
				if b, ok := n.router.View().Backend(list[i].id); !ok || b.KVTokens != 1000+i {
					t.Errorf("engine %d: %+v", i, b)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d views for %d news", views, 2*engines)
}

// TestOneViewForAll: reports that precede a view share it.
func TestOneViewForAll(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1", "http://127.0.0.3:2", "http://127.0.0.3:3"))
	if err != nil {
		t.Fatal(err)
	}
	publish, views := n.fleet.publish, 0
	n.fleet.publish = func(old, now *roster, v *policy.View) {
		views++
		publish(old, now, v)
	}
	list := n.fleet.roster().list
	for _, u := range list {
		n.fleet.noteModels(u, []listedModel{{id: u.Name}}, nil)
	}
	for range list {
		if err := n.fleet.refresh(); err != nil {
			t.Error(err)
		}
	}
	if got := len(n.router.View().Models()); views != 1 || got != len(list) {
		t.Errorf("%d views with %d models, want one with all", views, got)
	}
}
