package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"grapevine.example/chaos/history"
)

// GRAPEVINE_CHAOS asks for long fault tests: a duration, or anything else for 3 min.
func chaotic() bool { return os.Getenv("GRAPEVINE_CHAOS") != "" }

func chaosLength() time.Duration {
	if !chaotic() {
		return 2 * time.Second
	}
	if d, err := time.ParseDuration(os.Getenv("GRAPEVINE_CHAOS")); err == nil {
		return d
	}
	return 3 * time.Minute
}

type historian struct {
	history.Log

	mu    sync.Mutex
	count map[string]int // outcomes
}

func (h *historian) outcome(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count[what]++
}

// do records an operation that has or may have happened.
func (h *historian) do(ctx context.Context, client int, s *Store, in history.Input) {
	call := h.Now()
	if in.Kind == history.Read {
		st, err := s.Read(ctx)
		if err != nil {
			h.outcome("read failed")
			return
		}
		b, exists := st.Backend(in.Backend)
		h.Add(client, in, call, history.Output{Exists: exists, Drained: b.Drained})
		h.outcome("read")
		return
	}
	commands := map[history.Kind]Command{
		history.Add:    add(in.Backend),
		history.Drain:  SetBackendState{Names: []string{in.Backend}, Action: Drain, Reason: "test"},
		history.Resume: SetBackendState{Names: []string{in.Backend}, Action: Resume, Reason: "test"},
		history.Remove: RemoveBackends{[]string{in.Backend}},
	}
	_, err := s.Apply(ctx, commands[in.Kind])
	switch {
	case err == nil:
		h.Add(client, in, call, history.Output{})
		h.outcome("done")
	case errors.Is(err, ErrExists), errors.Is(err, ErrNotFound):
		h.Add(client, in, call, history.Output{Refused: true})
		h.outcome("refused")
	case errors.Is(err, ErrUncertain):
		h.Add(client, in, call, history.Output{Unknown: true})
		h.outcome("unknown")
	case errors.Is(err, ErrNoLeader), errors.Is(err, ErrStopped):
		h.outcome("not done")
	default:
		h.outcome("unexpected: " + err.Error())
	}
}

// Histories are linearizable, in real time; TestSeedsGroup does more in virtual time.
func TestLinearizable(t *testing.T) {
	sizes := []int{3}
	if chaotic() {
		sizes = []int{3, 5}
	}
	for _, size := range sizes {
		t.Run(fmt.Sprintf("nodes=%d", size), func(t *testing.T) {
			t.Parallel()
			linearizable(t, size, 4, chaosLength())
		})
	}
}

func linearizable(t *testing.T, size, clients int, length time.Duration) {
	r := seeded(t)
	f := newRealFleet(t, size, func(c *Config) {
		c.Timers.Call, c.Timers.Write = 2*time.Second, 500*time.Millisecond
		c.Timers.Heartbeat, c.Timers.Lease = 300*time.Millisecond, 300*time.Millisecond
	}).start()
	until(t, "the first write", func() bool {
		_, err := f.running()[0].Apply(t.Context(), add("first"))
		return err == nil || errors.Is(err, ErrExists)
	})
	h := &historian{count: make(map[string]int)}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	for i := range clients {
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		wg.Go(func() { client(ctx, f, h, i, own) })
	}
	own := rand.New(rand.NewPCG(r.Uint64(), 99))
	wg.Go(func() { nemesis(ctx, f, h, own) })
	wg.Wait()
	f.heal()
	for _, n := range f.all() {
		n.resume()
		n.fail.Store(nil)
		if n.store.Load() == nil {
			n.start()
		}
	}
	var last *State
	until(t, "a read after the faults", func() bool {
		var err error
		last, err = f.running()[0].Read(t.Context())
		return err == nil
	})
	for _, n := range f.all() {
		until(t, "all nodes to know the same", func() bool {
			st := n.store.Load().State()
			// Abandoned writes may still arrive.
			if st.Version > last.Version {
				last = st
			}
			return st.Version == last.Version
		})
		if st := n.store.Load().State(); st.Version == last.Version && !sameNames(st, last) {
			t.Errorf("%s knows %v at version %d, others %v", n.name, st.Backends, st.Version, last.Backends)
		}
	}
	judge(t, h)
}

func sameNames(a, b *State) bool {
	return slices.EqualFunc(a.Backends, b.Backends, func(x, y Backend) bool {
		return x.Name == y.Name && x.Generation == y.Generation && x.State == y.State
	})
}

func client(ctx context.Context, f *fleet, h *historian, id int, r *rand.Rand) {
	for ctx.Err() == nil {
		n := f.nodes[r.IntN(len(f.nodes))]
		if s := n.store.Load(); s != nil {
			kind := history.Kind(r.IntN(history.Kinds))
			// The call outlives the test's end to learn its outcome.
			h.do(context.Background(), id, s, history.Input{Kind: kind, Backend: fmt.Sprintf("b%d", r.IntN(10))})
		}
		time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond) // long histories take long to check
	}
}

func nemesis(ctx context.Context, f *fleet, h *historian, r *rand.Rand) {
	pause := func(ms int) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(ms) * time.Millisecond):
		}
	}
	full := error(&fs.PathError{Op: "write", Path: "raft.db", Err: syscall.ENOSPC})
	for ctx.Err() == nil {
		pause(100 + r.IntN(300))
		n := f.nodes[r.IntN(len(f.nodes))]
		if r.IntN(2) == 0 {
			for _, candidate := range f.nodes {
				if s := candidate.store.Load(); s != nil && s.isLeader(s.current()) {
					n = candidate
				}
			}
		}
		switch r.IntN(4) {
		case 0:
			h.outcome("kill")
			n.kill()
			pause(r.IntN(600))
			n.start()
		case 1:
			h.outcome("partition")
			some := []*node{n}
			if len(f.nodes) > 3 {
				some = append(some, f.nodes[(n.index+1)%len(f.nodes)])
			}
			f.isolate(some...)
			pause(200 + r.IntN(1000))
			f.heal()
		case 2:
			h.outcome("hang")
			n.pause()
			pause(100 + r.IntN(1000))
			n.resume()
		case 3:
			h.outcome("full disk")
			n.fail.Store(&full)
			pause(r.IntN(500))
			n.fail.Store(nil)
		}
	}
}

func judge(t *testing.T, h *historian) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	began := time.Now()
	ops := h.Operations()
	verdict := history.Judge(ops, 5*time.Minute)
	t.Logf("%d operations, %v, checked in %v", len(ops), h.count, time.Since(began).Round(time.Millisecond))
	for what := range h.count {
		if strings.HasPrefix(what, "unexpected") {
			t.Error(what)
		}
	}
	if verdict.OK() {
		return
	}
	t.Errorf("the history is %s", verdict.Result)
	if out, err := os.CreateTemp("", "raftstore-history-*.html"); err == nil {
		defer out.Close()
		if verdict.Draw(out) == nil {
			t.Logf("see %s", out.Name())
		}
	}
}
