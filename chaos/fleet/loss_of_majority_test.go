package fleet_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestLiveMajority(t *testing.T) {
	full := live(t)
	const voters = 3
	later := whenFull(full, 2, 1)
	followers := whenFull(full, 3, 0)
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Spares, cfg.Later = voters+followers+later, later, later
		cfg.Engines = cfg.Nodes
		cfg.Settings["drain_grace"], cfg.Settings["drain_close"] = "1s", "0s"
	})
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	fresh := f.Nodes()[voters+followers:]
	for _, n := range fresh {
		if err := f.WaitHealthy(ctx, n.Name(), false); err != nil {
			t.Fatal(err)
		}
	}
	m := &majority{full: full, f: f, w: newWrites(t), dead: new(absences)}
	m.load = startTraffic(ctx, t, f, trafficConfig{rate: whenFull(full, 12.0, 4), seed: 7, length: 15 * time.Minute, excuse: m.dead.excuse})

	a := agree(ctx, t, f, voters)
	for _, n := range running(f) {
		m.w.until(ctx, t, n)
	}
	m.lose(ctx, t, "leader and one more", a.voters[:2], whenFull(full, time.Minute, 10*time.Second))
	m.dead.end(m.load.now())
	began := time.Now()
	for _, n := range a.voters[:2] {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	m.w.until(ctx, t, a.voters[2])
	atMost(t, "a change is confirmed after both were started again", time.Since(began).Seconds(), whenFull(full, 15.0, 120), "s")
	a = agree(ctx, t, f, voters)
	m.w.check(ctx, t, f)

	m.lose(ctx, t, "all but the leader", a.voters[1:], whenFull(full, 10*time.Second, time.Second))
	if !full {
		m.load.stop()
	}
	m.recover(ctx, t, a.leader)
	m.rejoin(ctx, t, without(running(f), a.leader), fresh)
	m.load.stop()
	m.load.noErrors(t)
	shown(t, "requests", float64(m.load.result.Requests), fmt.Sprintf("of them cut on killed routers %d, connections repeated %d", m.load.result.Cut, m.load.result.Live.Retried))
	shown(t, "changes confirmed", float64(len(m.w.acked)), fmt.Sprintf("of %d, refused %d", m.w.count, len(m.w.refused)))
}

type majority struct {
	full bool
	f    *fleet.Fleet
	load *traffic
	w    *writes
	dead *absences
}

func (m *majority) lose(ctx context.Context, t *testing.T, who string, victims []*fleet.Node, length time.Duration) {
	t.Helper()
	reason := []string{"no quorum: 2 of 3 voters unreachable"}
	for _, n := range victims {
		st, err := n.Raft(ctx)
		if err != nil {
			t.Fatal(err)
		}
		reason = append(reason, st.Addr)
		m.dead.begin(n, m.load.now())
	}
	killed := m.load.now()
	killAll(t, victims...)
	gone := m.load.now()
	var slowest time.Duration
	tries, served, named, survivors := 0, 0, false, running(m.f)
	for ; m.load.now() < killed+length || !named || served == 0; tries++ {
		n := survivors[tries%len(survivors)]
		took, err := m.w.write(ctx, n)
		switch {
		case ctx.Err() != nil:
			t.Fatalf("%d answers, and the reason was given: %v", served, named)
		case err == nil:
			t.Fatalf("%s confirmed a change that two of three voters cannot know", n.Name())
		}
		slowest = max(slowest, took)
		t.Logf("%s, after %.3f s: %v", n.Name(), took.Seconds(), err)
		missing := slices.DeleteFunc(slices.Clone(reason), func(part string) bool { return strings.Contains(err.Error(), part) })
		if named = len(missing) == 0; !named && m.full {
			t.Errorf("%s does not name %q: %v", n.Name(), missing, err)
		}
		served = m.served(t, gone, victims)
	}
	until := m.load.now()
	who += " dead for " + (until - killed).Round(time.Second).String() + ": "
	atMost(t, who+"a change is refused after, at worst", slowest.Seconds(), whenFull(m.full, 2.0, 30), fmt.Sprintf("s (of %d)", tries))
	shown(t, who+"answers", float64(served), "")
}

func (m *majority) served(t *testing.T, since time.Duration, dead []*fleet.Node) (total int) {
	t.Helper()
	by := m.load.served(since, m.load.now())
	for _, n := range dead {
		if by[n.Name()] > 0 {
			t.Fatalf("%d answers from %s, which is dead", by[n.Name()], n.Name())
		}
	}
	for _, n := range by {
		total += n
	}
	return total
}

func (m *majority) recover(ctx context.Context, t *testing.T, last *fleet.Node) {
	t.Helper()
	before, err := last.Raft(ctx)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := last.Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, grapevine(t), "raft", "recover", "--data-dir", last.DataDir(), "--server", before.ID+"="+before.Addr)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "a group of 1") {
		t.Fatalf("raft recover: %v: %s", err, out)
	}
	if err := last.Start(); err != nil {
		t.Fatal(err)
	}
	m.w.until(ctx, t, last)
	shown(t, "recovery, until a change is confirmed", time.Since(began).Seconds(), "s")
	after, err := last.Raft(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if after.Role != "leader" || len(after.Servers) != 1 || after.ID != before.ID || after.Group == before.Group {
		t.Errorf("after the recovery: %+v, was %+v", after, before)
	}
}

func (m *majority) rejoin(ctx context.Context, t *testing.T, followers, fresh []*fleet.Node) {
	t.Helper()
	var slowest time.Duration
	began := time.Now()
	for _, n := range fresh {
		begun := time.Now()
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		if err := n.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		m.w.until(ctx, t, n)
		slowest = max(slowest, time.Since(begun))
	}
	shown(t, "an empty router takes a change after its start, at worst", slowest.Seconds(), "s")
	for _, n := range followers {
		if err := n.Terminate(ctx); err != nil {
			t.Fatal(err)
		}
		comeBack(ctx, t, n)
		m.w.until(ctx, t, n)
	}
	// With two candidates the group keeps one voter, because two voters cannot lose either.
	votes := whenFull(m.full, 3, 1)
	agree(ctx, t, m.f, votes)
	shown(t, fmt.Sprintf("all agree, with %d voters, after", votes), time.Since(began).Seconds(), "s")
	m.w.check(ctx, t, m.f)
}
