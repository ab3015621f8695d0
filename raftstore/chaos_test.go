package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// chaotic says that tests of faults are to run for long, as GRAPEVINE_CHAOS asks:
// a duration, or anything else for three minutes.
func chaotic() bool { return os.Getenv("GRAPEVINE_CHAOS") != "" }

func chaosLength() time.Duration {
	if !chaotic() {
		return 4 * time.Second
	}
	if d, err := time.ParseDuration(os.Getenv("GRAPEVINE_CHAOS")); err == nil {
		return d
	}
	return 3 * time.Minute
}

// The operations of a history. Each is on one backend.
type opKind uint8

const (
	opAdd opKind = iota
	opDrain
	opResume
	opRemove
	opRead
)

func (k opKind) String() string { return nameOf(k, "add", "drain", "resume", "remove", "read") }

type opInput struct {
	kind opKind
	name string
}

// opOutput is what an operation said. refused: the backend exists already, or
// does not exist. unknown: nobody can know whether it was carried out.
type opOutput struct {
	unknown, refused bool
	exists, drained  bool // of reads
}

// sequential is one backend of a store that does one thing after the other.
type sequential struct{ exists, drained bool }

var membership = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(opInput).name
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return sequential{} },
	Step: func(state, input, output any) (bool, any) {
		st, in, out := state.(sequential), input.(opInput), output.(opOutput)
		next, refused := st.after(in.kind)
		if in.kind == opRead {
			return out.exists == st.exists && out.drained == st.drained, st
		}
		return out.unknown || out.refused == refused, next
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(opInput), output.(opOutput)
		return fmt.Sprintf("%v %s -> %+v", in.kind, in.name, out)
	},
}

// after is what an operation makes of a backend, and whether it is refused.
func (st sequential) after(kind opKind) (next sequential, refused bool) {
	switch {
	case kind == opRead:
		return st, false
	case kind == opAdd && st.exists, kind != opAdd && !st.exists:
		return st, true
	case kind == opAdd:
		return sequential{exists: true}, false
	case kind == opRemove:
		return sequential{}, false
	}
	return sequential{exists: true, drained: kind == opDrain}, false
}

// historian records what clients do.
type historian struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
	count map[string]int // outcomes
}

func (h *historian) record(client int, in opInput, call, end int64, out opOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

func (h *historian) outcome(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count[what]++
}

func (h *historian) now() int64 { return int64(time.Since(h.began)) }

// do carries out one operation at a store and records it, if it has or may have
// happened.
func (h *historian) do(ctx context.Context, client int, s *Store, in opInput) {
	call := h.now()
	if in.kind == opRead {
		st, err := s.Read(ctx)
		if err != nil {
			h.outcome("read failed")
			return
		}
		b, exists := st.Backend(in.name)
		h.record(client, in, call, h.now(), opOutput{exists: exists, drained: b.Drained})
		h.outcome("read")
		return
	}
	commands := map[opKind]Command{
		opAdd:    add(in.name),
		opDrain:  SetBackendState{Names: []string{in.name}, Action: Drain, Reason: "test"},
		opResume: SetBackendState{Names: []string{in.name}, Action: Resume, Reason: "test"},
		opRemove: RemoveBackends{[]string{in.name}},
	}
	_, err := s.Apply(ctx, commands[in.kind])
	switch {
	case err == nil:
		h.record(client, in, call, h.now(), opOutput{})
		h.outcome("done")
	case errors.Is(err, ErrExists), errors.Is(err, ErrNotFound):
		h.record(client, in, call, h.now(), opOutput{refused: true})
		h.outcome("refused")
	case errors.Is(err, ErrUncertain):
		h.record(client, in, call, math.MaxInt64, opOutput{unknown: true})
		h.outcome("unknown")
	case errors.Is(err, ErrNoLeader), errors.Is(err, ErrStopped):
		h.outcome("not done")
	default:
		h.outcome("unexpected: " + err.Error())
	}
}

// Histories of groups of three and five, in which nodes are killed, disks hang
// and fill up, and the network is cut, are those of a store that does one thing
// after the other; and at the end all nodes know the same.
func TestLinearizable(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprintf("nodes=%d", size), func(t *testing.T) {
			t.Parallel()
			linearizable(t, size, 4, chaosLength())
		})
	}
}

func linearizable(t *testing.T, size, clients int, length time.Duration) {
	r := seeded(t)
	f := newFleet(t, size, func(c *Config) {
		c.Timers.Call, c.Timers.Write = 2*time.Second, 500*time.Millisecond
		c.Timers.Heartbeat, c.Timers.Lease = 300*time.Millisecond, 300*time.Millisecond
	}).start()
	until(t, "the first write", func() bool {
		_, err := f.running()[0].Apply(t.Context(), add("first"))
		return err == nil || errors.Is(err, ErrExists)
	})
	h := &historian{began: time.Now(), count: make(map[string]int)}
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
			// Writes that were given up may still come, so the newest is asked for again.
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
		return x.Name == y.Name && x.ID == y.ID && x.Generation == y.Generation && x.State == y.State
	})
}

func client(ctx context.Context, f *fleet, h *historian, id int, r *rand.Rand) {
	for ctx.Err() == nil {
		n := f.nodes[r.IntN(len(f.nodes))]
		if s := n.store.Load(); s != nil {
			kind := opKind(r.IntN(int(opRead) + 1))
			// A call is not ended by the end of the test, so that its outcome is known.
			h.do(context.Background(), id, s, opInput{kind, fmt.Sprintf("b%d", r.IntN(10))})
		}
		time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond) // thinks: histories are judged in time that grows with their length
	}
}

// nemesis does one harm after the other, and undoes it.
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
			// The leader is where it hurts.
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

// judge checks the history.
func judge(t *testing.T, h *historian) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	began := time.Now()
	result, info := porcupine.CheckOperationsVerbose(membership, h.ops, 5*time.Minute)
	t.Logf("%d operations, %v, checked in %v", len(h.ops), h.count, time.Since(began).Round(time.Millisecond))
	for what := range h.count {
		if strings.HasPrefix(what, "unexpected") {
			t.Error(what)
		}
	}
	if result == porcupine.Ok {
		return
	}
	t.Errorf("the history is %s", result)
	if out, err := os.CreateTemp("", "raftstore-history-*.html"); err == nil {
		defer out.Close()
		if porcupine.Visualize(membership, info, out) == nil {
			t.Logf("see %s", out.Name())
		}
	}
}

// The judge can tell: a write that was acknowledged and is not read is found, and
// so is a state that was never there.
func TestJudgeFindsFaults(t *testing.T) {
	op := func(kind opKind, call, end int64, out opOutput) porcupine.Operation {
		return porcupine.Operation{Input: opInput{kind, "b"}, Call: call, Return: end, Output: out}
	}
	for _, c := range []struct {
		name    string
		history []porcupine.Operation
		ok      bool
	}{
		{"in order", []porcupine.Operation{op(opAdd, 1, 2, opOutput{}), op(opRead, 3, 4, opOutput{exists: true})}, true},
		{"lost write", []porcupine.Operation{op(opAdd, 1, 2, opOutput{}), op(opRead, 3, 4, opOutput{})}, false},
		{"stale read", []porcupine.Operation{
			op(opAdd, 1, 2, opOutput{}), op(opDrain, 3, 4, opOutput{}), op(opRead, 5, 6, opOutput{exists: true}),
		}, false},
		{"twice", []porcupine.Operation{op(opAdd, 1, 2, opOutput{}), op(opAdd, 3, 4, opOutput{})}, false},
		{"unknown, done later", []porcupine.Operation{
			op(opAdd, 1, math.MaxInt64, opOutput{unknown: true}), op(opRead, 2, 3, opOutput{}), op(opRead, 4, 5, opOutput{exists: true}),
		}, true},
		{"unknown, undone", []porcupine.Operation{
			op(opAdd, 1, math.MaxInt64, opOutput{unknown: true}), op(opRead, 2, 3, opOutput{exists: true}), op(opRead, 4, 5, opOutput{}),
		}, false},
	} {
		if got := porcupine.CheckOperations(membership, c.history); got != c.ok {
			t.Errorf("%s: linearizable is %v", c.name, got)
		}
	}
}
