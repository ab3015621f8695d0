package gossip

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/bubble"
)

func TestLifecycle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := context.Background()
		never, err := prepare(Config{Knowledge: newModel("x"), Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := never.Stop(ctx); err != nil {
				t.Errorf("stop before start: %v", err)
			}
		}
		if err := never.Start(ctx); err == nil {
			t.Error("started after it was stopped")
		}

		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		if err := nodes[0].Start(ctx); err == nil {
			t.Error("started twice")
		}
		nodes[0].know.learn(7, 1)
		began := time.Now()
		nodes[0].stop(t)
		if !nodes[1].know.knows(7) {
			t.Error("the last news was lost")
		}
		if took := time.Since(began); took > defaultFlush+drainPatience {
			t.Errorf("stop took %v", took)
		}
		nodes[0].stop(t)
		_, _, _ = nodes[0].Peers(), nodes[0].Stats(), nodes[0].Position()
		until(t, time.Second, "the other one knows that it left", func() bool {
			p := nodes[1].Peers()
			return len(p) == 1 && p[0].State == "left" && !p[0].Connected
		})
		nodes[1].stop(t)
	})
}

func TestStreamOfANodeThatLeavesIsReadToItsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		var delayed atomic.Bool
		net.slow = func(from, _ string) time.Duration {
			if from == "n0" && delayed.Load() {
				return 600 * time.Millisecond
			}
			return 0
		}
		nodes := net.startAll(2, nil)
		delayed.Store(true)
		nodes[0].know.learn(7, 1)
		nodes[0].stop(t)
		if p := nodes[1].Peers(); p[0].State != "left" || nodes[1].know.knows(7) {
			t.Fatalf("%v: nothing is tested", p[0].State)
		}
		until(t, time.Second, "the last batch", func() bool { return nodes[1].know.knows(7) })
		until(t, time.Second, "the end of the stream", func() bool { return !nodes[1].Peers()[0].Connected })
		nodes[1].stop(t)
	})
}

type lateStart struct {
	*memnode
	release chan struct{}
	err     error
	turn    *sync.Mutex
}

func (m lateStart) Start(ctx context.Context) error {
	<-m.release
	m.turn.Lock()
	defer m.turn.Unlock()
	if m.err != nil {
		return m.err
	}
	return m.memnode.Start(ctx)
}

func (m lateStart) Stop(ctx context.Context) error {
	<-m.release
	m.turn.Lock()
	defer m.turn.Unlock()
	return m.memnode.Stop(ctx)
}

func TestStopDuringStart(t *testing.T) {
	for _, fault := range []error{nil, errUnreachable} {
		bubble.Test(t, func(t *testing.T) {
			ctx := context.Background()
			net := newMemnet(t)
			f, err := prepare(Config{Knowledge: newModel("x"), Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			m := lateStart{net.node("x", 1), make(chan struct{}), fault, new(sync.Mutex)}
			m.onEvent, m.serve = f.onEvent, f.serve
			f.members = m
			started, stopped := make(chan error), make(chan error)
			go func() { started <- f.Start(ctx) }()
			synctest.Wait()
			go func() { stopped <- f.Stop(ctx) }()
			synctest.Wait()
			f.Peers()
			close(m.release)
			if err := <-started; err == nil {
				t.Error("started although it was stopped")
			}
			if err := <-stopped; err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := m.memnode.Stop(ctx); err != nil {
				t.Errorf("membership: %v", err)
			}
		})
	}
}

func TestStopIsBoundedByItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.buffer = 1 << 10
		nodes := net.startAll(2, nil)
		net.notice = time.Hour
		net.partition(func(name string) bool { return name == "n1" })
		for i := range 1000 {
			nodes[0].know.learn(uint64(i), 1)
		}
		time.Sleep(time.Second)
		began := time.Now()
		nodes[0].stop(t)
		if took := time.Since(began); took > time.Second {
			t.Errorf("stop took %v beside a peer that takes nothing", took)
		}
		nodes[1].stop(t)
	})
}

func TestConfigIsChecked(t *testing.T) {
	know := newModel("x")
	for name, cfg := range map[string]Config{
		"no knowledge":      {},
		"flush too short":   {Knowledge: know, FlushInterval: time.Microsecond},
		"flush too long":    {Knowledge: know, FlushInterval: time.Minute},
		"negative deadline": {Knowledge: know, SnapshotDeadline: -1},
		"tiny journal":      {Knowledge: know, JournalBytes: 1000},
		"tiny budget":       {Knowledge: know, Budget: 1},
		"negative budget":   {Knowledge: know, Budget: -5},
	} {
		if _, err := prepare(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
