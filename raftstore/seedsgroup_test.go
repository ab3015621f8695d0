package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/history"
	"grapevine.example/chaos/virtual"
)

type virtualGroup struct {
	*fleet
	t       *testing.T
	r       *rand.Rand
	h       *historian
	leaders map[uint64]string // by term
	newest  map[*Store]uint64 // highest version that each process has shown
	notes   []string
}

func (g *virtualGroup) note(format string, args ...any) {
	g.notes = append(g.notes, fmt.Sprintf(format, args...))
}

// watch checks the invariants continuously.
func (g *virtualGroup) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for _, n := range g.all() {
			s := n.store.Load()
			if s == nil {
				continue
			}
			version := s.State().Version
			if version < g.newest[s] {
				g.t.Errorf("%s went back from version %d to %d", n.name, g.newest[s], version)
			}
			g.newest[s] = version
			inst := s.current()
			if inst == nil {
				continue
			}
			term := inst.raft.CurrentTerm()
			if inst.raft.State() != raft.Leader || inst.raft.CurrentTerm() != term {
				continue
			}
			if other, known := g.leaders[term]; known && other != s.ID() {
				g.t.Errorf("%s and %s lead in term %d", other, s.ID(), term)
			}
			g.leaders[term] = s.ID()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (g *virtualGroup) harm(ctx context.Context) {
	full := error(&fs.PathError{Op: "write", Path: dataFile, Err: syscall.ENOSPC})
	swarm := virtual.NewSwarm(g.r, 6)
	pause := func(most time.Duration) {
		timer := time.NewTimer(time.Duration(g.r.Int64N(int64(most))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		pause(2 * time.Second)
		n := g.nodes[g.r.IntN(len(g.nodes))]
		if g.r.IntN(2) == 0 {
			for _, candidate := range g.nodes { // prefer the leader
				if s := candidate.store.Load(); s != nil && s.isLeader(s.current()) {
					n = candidate
				}
			}
		}
		what := swarm.Next(g.r)
		g.note("%s: harm %d", n.name, what)
		switch what {
		case 0:
			n.kill()
			pause(3 * time.Second)
			n.start()
		case 1:
			n.halt()
			pause(3 * time.Second)
			n.start()
		case 2:
			var some []*node
			for _, other := range g.nodes {
				if other == n || g.r.IntN(3) == 0 {
					some = append(some, other)
				}
			}
			g.isolate(some...)
			pause(6 * time.Second)
			g.heal()
		case 3:
			n.pause()
			pause(3 * time.Second)
			n.resume()
		case 4:
			n.fail.Store(&full)
			pause(2 * time.Second)
			n.fail.Store(nil)
		case 5:
			if s := n.store.Load(); s != nil {
				_ = s.Transfer(context.Background(), "")
			}
		}
	}
}

func (g *virtualGroup) client(ctx context.Context, id int, r *rand.Rand) {
	for ctx.Err() == nil {
		if s := g.nodes[r.IntN(len(g.nodes))].store.Load(); s != nil {
			in := history.Input{Kind: history.Kind(r.IntN(history.Kinds)), Backend: fmt.Sprintf("b%d", r.IntN(6))}
			g.h.do(context.Background(), id, s, in)
		}
		time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
	}
}

// healedWithin covers elections, a disk reopened after 5 s, and raft's pause of up to 10 s before
// it retries.
const healedWithin = 30 * time.Second

func (g *virtualGroup) run(lasts time.Duration) {
	g.start()
	until(g.t, "the first write", func() bool {
		_, err := g.running()[0].Apply(context.Background(), add("first"))
		return err == nil || errors.Is(err, ErrExists)
	})
	watched, watch := context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	var wg, watching sync.WaitGroup
	watching.Go(func() { g.watch(watched) })
	defer watching.Wait()
	defer watch()
	for i := range 3 {
		own := virtual.Rand(g.r.Uint64(), uint64(i))
		wg.Go(func() { g.client(ctx, i, own) })
	}
	g.harm(ctx)
	wg.Wait()
	g.heal()
	for _, n := range g.nodes {
		n.resume()
		n.fail.Store(nil)
		if n.store.Load() == nil {
			n.start()
		}
	}
	took := g.healed()
	watch()
	watching.Wait()
	g.t.Logf("healed after %v, %d terms, %d operations: %v", took, len(g.leaders), len(g.h.Operations()), g.h.count)
}

func (g *virtualGroup) healed() time.Duration {
	g.t.Helper()
	began := time.Now()
	var why string
	for time.Since(began) < healedWithin {
		last, err := g.running()[0].Read(context.Background())
		if err != nil {
			why = err.Error()
			time.Sleep(50 * time.Millisecond)
			continue
		}
		why = ""
		for _, n := range g.nodes {
			switch st := n.store.Load().State(); {
			case st.Version != last.Version:
				why = fmt.Sprintf("%s knows version %d of %d: %s", n.name, st.Version, last.Version, n.store.Load().Status().Problem)
			case !sameNames(st, last):
				g.t.Fatalf("%s knows %v at version %d, others %v", n.name, st.Backends, st.Version, last.Backends)
			}
		}
		if why == "" {
			return time.Since(began)
		}
		time.Sleep(50 * time.Millisecond)
	}
	g.t.Fatalf("not healed after %v: %s\n%v", healedWithin, why, g.notes)
	return 0
}

func memoryDir(t testing.TB) string {
	if dir, err := os.MkdirTemp("/dev/shm", "raftstore"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// The history is linearizable, each term has one leader, no state goes back, and all nodes agree.
func TestSeedsGroup(t *testing.T) {
	virtual.Seeds(t, 2, 20, func(t *testing.T, seed uint64) {
		dir := memoryDir(t)
		h := &historian{count: make(map[string]int)}
		bubble.Test(t, func(t *testing.T) {
			r := virtual.Rand(seed, 0)
			f := makeFleet(t, newWire(dir), 3+2*r.IntN(2), func(c *Config) {
				c.Timers = Timers{SnapshotEvery: time.Second, SnapshotAfter: 32, KeepLog: 8}
			})
			g := &virtualGroup{fleet: f, t: t, r: r, h: h, leaders: map[uint64]string{}, newest: map[*Store]uint64{}}
			g.run(30 * time.Second)
		})
		judge(t, h)
	})
}
