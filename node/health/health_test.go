package health

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
)

func (w *world) dies(key uint32, why Reason, took time.Duration) {
	answer := w.answer
	w.answer = func(node int, k uint32, at time.Time) (Reason, time.Duration) {
		if k == key {
			return why, took
		}
		return answer(node, k, at)
	}
}

// TestDeadEngine: every node avoids a killed engine within a second, the fleet commits it as down
// within five, and it returns seconds after it answers again.
func TestDeadEngine(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 8, 40} {
		w := newWorld(t, nodes, 16, virtual.Seed(t))
		w.run(5 * time.Second)
		alive := w.answer
		w.dies(3, Refused, time.Millisecond)
		w.after(20*time.Millisecond, func() {
			if w.boards[nodes/2].Failed(3, w.now) {
				w.tell(nodes / 2)
			}
		})
		avoided := w.until(time.Second, "avoided by all", func() bool { return w.avoiding(3) == nodes })
		down := avoided + w.until(4*time.Second, "down", func() bool { return w.down("engine-2") })
		t.Logf("%d nodes: avoided by all after %s, down after %s", nodes, avoided, down)
		w.run(10 * time.Second)
		if got := w.avoiding(3); got != nodes {
			t.Errorf("%d of %d nodes avoid it after ten seconds", got, nodes)
		}
		w.answer = alive
		up := w.until(2500*time.Millisecond, "up", func() bool { return !w.down("engine-2") })
		t.Logf("%d nodes: up %s after its return", nodes, up)
		if up < time.Second {
			t.Errorf("up after %s, before it has answered a few times", up)
		}
		w.run(time.Minute)
		if n := w.avoiding(3); n > 0 {
			t.Errorf("%d nodes avoid a healthy engine", n)
		}
		if want := []string{"down engine-2", "up engine-2"}; !slices.Equal(w.written, want) {
			t.Errorf("written down: %v, want %v", w.written, want)
		}
		if want := []Generation{{"engine-2", 1}}; !slices.Equal(w.renewed, want) {
			t.Errorf("a closed port is a process that has ended; renewed: %v", w.renewed)
		}
	}
}

func TestOneRestartIsOneGeneration(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	w.run(5 * time.Second)
	alive := w.answer
	w.dies(3, Refused, time.Millisecond)
	w.until(5*time.Second, "down", func() bool { return w.down("engine-2") })
	w.backends = slices.Clone(w.backends)
	w.backends[2].Generation = 2 // another node has noticed
	w.setBackends()
	w.answer = alive
	w.until(8*time.Second, "up", func() bool { return !w.down("engine-2") })
	if want := []Generation{{"engine-2", 1}}; !slices.Equal(w.renewed, want) {
		t.Errorf("renewed %v, want %v", w.renewed, want)
	}
}

func TestHungEngine(t *testing.T) {
	w := newWorld(t, 5, 8, virtual.Seed(t))
	w.run(5 * time.Second)
	w.dies(3, Timeout, time.Hour)
	t.Logf("down after %s", w.until(15*time.Second, "down", func() bool { return w.down("engine-2") }))
	if len(w.renewed) > 0 {
		t.Errorf("taken for restarted: %v", w.renewed)
	}
}

// TestPausedEngine: an engine that is silent for seconds stays up; an unreachable one goes down.
func TestPausedEngine(t *testing.T) {
	for why, down := range map[Reason]bool{Timeout: false, Connect: true} {
		w := newWorld(t, 3, 4, virtual.Seed(t))
		alive := w.answer
		w.run(5 * time.Second)
		w.dies(2, why, simTimeout)
		w.run(7 * time.Second)
		if w.down("engine-1") != down || (w.avoiding(2) == 3) != down {
			t.Errorf("%s for 7 s: down %v, avoided by %d of 3", why, w.down("engine-1"), w.avoiding(2))
		}
		w.answer = alive
		w.run(time.Minute)
		if w.down("engine-1") || w.avoiding(2) > 0 {
			t.Errorf("%s for 7 s: it has not come back", why)
		}
	}
}

func TestBusyEngine(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	w.run(5 * time.Second)
	w.dies(2, Timeout, time.Hour)
	for range 300 {
		w.run(100 * time.Millisecond)
		for _, b := range w.boards {
			b.Answered(2, w.now)
		}
	}
	if len(w.written) > 0 || w.avoiding(2) > 0 {
		t.Errorf("%v, avoided by %d", w.written, w.avoiding(2))
	}
}

// TestPartitionedNode: peers briefly avoid, and never commit, what only one node cannot reach.
func TestPartitionedNode(t *testing.T) {
	w := newWorld(t, 5, 8, virtual.Seed(t))
	w.run(5 * time.Second)
	alive := w.answer
	w.answer = func(node int, key uint32, at time.Time) (Reason, time.Duration) {
		if node == 4 {
			return Timeout, time.Hour
		}
		return alive(node, key, at)
	}
	w.run(15 * time.Second) // its timeouts and the grace period
	for range 600 {
		w.run(100 * time.Millisecond)
		for i, b := range w.boards[:4] {
			if list := b.Avoid(nil, w.now); len(list) > 0 {
				t.Fatalf("node %d avoids %v, which only node 4 cannot reach", i, list)
			}
		}
	}
	if len(w.written) > 0 {
		t.Errorf("written down: %v", w.written)
	}
}

func TestFailsFast(t *testing.T) {
	w := newWorld(t, 8, 8, virtual.Seed(t))
	w.run(5 * time.Second)
	try := func() {
		w.boards[0].Failed(5, w.now)
		w.boards[0].Ejected(5, true, Status5xx, w.now)
		w.tell(0)
	}
	try()
	w.until(time.Second, "avoided by the others", func() bool { return w.avoiding(5) == 7 })
	for range 4 {
		w.run(30 * time.Second)
		if got := w.avoiding(5); got != 7 {
			t.Fatalf("avoided by %d of 7 others", got)
		}
		try()
	}
	w.boards[0].Ejected(5, false, NoReason, w.now)
	w.until(time.Second, "nobody avoids it once a request was answered", func() bool { return w.avoiding(5) == 0 })
}

func TestRequestsTakeNothingDown(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	w.run(5 * time.Second)
	for range 100 {
		for i, b := range w.boards[:2] {
			b.Failed(2, w.now)
			b.Ejected(2, true, Status5xx, w.now)
			w.tell(i)
		}
		w.run(100 * time.Millisecond)
	}
	if got := w.avoiding(2); got != 1 {
		t.Errorf("avoided by %d nodes for the word of others", got)
	}
	if len(w.written) > 0 {
		t.Errorf("written down: %v", w.written)
	}
	for i, b := range w.boards {
		if v, ok := b.Verdict(2, w.now); !ok || !v.Avoid || v.Reason != Status5xx || v.Bad != 0 {
			t.Errorf("node %d: %+v", i, v)
		}
	}
}

func TestRequestsOfOthersAreBounded(t *testing.T) {
	w := newWorld(t, 8, 8, virtual.Seed(t))
	w.run(5 * time.Second)
	for i, b := range w.boards[:6] {
		b.Ejected(uint32(i+1), true, Reset, w.now)
		w.tell(i)
	}
	for range 50 {
		w.run(100 * time.Millisecond)
		for i, b := range w.boards {
			list, want := b.Avoid(nil, w.now), 0
			if i >= 6 {
				want = 1
			}
			if len(list) > want {
				t.Fatalf("node %d leaves %v alone", i, list)
			}
		}
	}
	if n := len(w.boards[7].Avoid(nil, w.now)); n != 1 {
		t.Errorf("leaves %d alone", n)
	}
}

// TestWhoSeesAFailureProbes: even if it is no reporter.
func TestWhoSeesAFailureProbes(t *testing.T) {
	w := newWorld(t, 8, 1, virtual.Seed(t))
	w.run(5 * time.Second)
	for end := w.now.Add(time.Second); len(w.events) > 0; w.run(5 * time.Millisecond) {
		if w.now.After(end) {
			t.Fatal("probes are under way for ever")
		}
	}
	for i, b := range w.boards {
		mine := slices.Contains(Assigned(1, b.nodes, Reporters), nodeName(i))
		if !b.Failed(1, w.now) {
			t.Errorf("node %d does not find it urgent", i)
		}
		due, _ := b.Due(nil, w.now.Add(retryAfter))
		if len(due) != 1 {
			t.Fatalf("node %d, reporter %v: %d probes", i, mine, len(due))
		}
		b.Failed(1, w.now.Add(retryAfter))
		b.Probed(due[0], NoReason, w.now.Add(retryAfter+time.Millisecond))
		if due, _ = b.Due(nil, w.now.Add(3*retryAfter)); len(due) != 1 {
			t.Errorf("node %d: the failure after a probe began is not looked into", i)
		}
		for _, p := range due {
			b.Probed(p, NoReason, w.now.Add(3*retryAfter))
		}
		if due, _ = b.Due(nil, w.now.Add(10*retryAfter)); len(due) > 0 && !mine {
			t.Errorf("node %d goes on probing what is for others to probe", i)
		}
	}
}

func TestFailingEnginesAreProbedSoon(t *testing.T) {
	for _, engines := range []int{1, 10, 2000} {
		b := New(Config{Self: "a", Interval: time.Second, Timeout: time.Second})
		var list []Backend
		for i := range engines {
			list = append(list, Backend{Key: uint32(i + 1), Name: fmt.Sprintf("e%04d", i)})
		}
		b.SetBackends(list, start)
		probes := 0
		for now := start; now.Before(start.Add(60 * time.Second)); now = now.Add(10 * time.Millisecond) {
			due, _ := b.Due(nil, now)
			for _, p := range due {
				b.Probed(p, Refused, now)
			}
			if now.After(start.Add(5*time.Second)) && now.Before(start.Add(25*time.Second)) {
				probes += len(due)
			}
			if now.After(start.Add(50*time.Second)) && len(due) > 0 && engines == 1 && b.engines[1].own.due.Sub(now) < 900*time.Millisecond {
				t.Error("one that has long been failing is probed more often than others")
			}
		}
		rate := float64(probes) / 20
		if least, most := 3*float64(min(engines, 50)), 4.5*float64(min(engines, 60))+float64(engines); rate < least || rate > most {
			t.Errorf("%d engines fail: %.1f probes a second, want %.0f to %.0f", engines, rate, least, most)
		}
	}
}

// TestFailuresOfOnesOwn: an answered request outweighs a peer's report of failed requests.
func TestFailuresOfOnesOwn(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	w.run(5 * time.Second)
	w.boards[0].Ejected(2, true, Status5xx, w.now)
	w.tell(0)
	w.run(200 * time.Millisecond)
	w.boards[1].Answered(2, w.now)
	if slices.Contains(w.boards[1].Avoid(nil, w.now), 2) {
		t.Error("avoids an engine that has just answered it")
	}
	if !slices.Contains(w.boards[2].Avoid(nil, w.now), 2) {
		t.Error("nobody heeds it")
	}
	w.boards[0].Ejected(2, false, NoReason, w.now)
	w.tell(0)
	w.run(time.Second)
	if n := w.avoiding(2); n > 0 {
		t.Errorf("%d nodes avoid it for old failures", n)
	}
}

func TestFlapping(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	alive := w.answer
	w.answer = func(node int, key uint32, at time.Time) (Reason, time.Duration) {
		if key == 1 && int(at.Sub(start)/time.Second)%20 < 8 {
			return Refused, time.Millisecond
		}
		return alive(node, key, at)
	}
	w.run(20 * time.Minute)
	if n := len(w.written); n > 20 || n < 4 {
		t.Errorf("written %d times in twenty minutes of flapping: %v", n, w.written)
	}
}

func TestAllFail(t *testing.T) {
	w := newWorld(t, 3, 9, virtual.Seed(t))
	w.run(5 * time.Second)
	w.answer = func(int, uint32, time.Time) (Reason, time.Duration) { return Connect, time.Millisecond }
	w.run(time.Minute)
	if n := len(w.written); n != 4 {
		t.Errorf("%d of 9 engines taken down, want 4: %v", n, w.written)
	}
}

func TestCommitsAreBounded(t *testing.T) {
	b := New(Config{Self: "a", Interval: time.Second, Timeout: time.Second})
	var list []Backend
	for i := range 1000 {
		list = append(list, Backend{Key: uint32(i + 1), Name: fmt.Sprintf("e%04d", i)})
	}
	b.SetBackends(list, start)
	commits, names := 0, 0
	now := start
	for i := range 400 {
		now = now.Add(100 * time.Millisecond)
		for j := range 10 {
			for range failsToBad {
				b.Probed(Probe{uint32((10*i+j)%1000 + 1), now}, Refused, now)
			}
		}
		for _, p := range b.Proposals(now) {
			commits++
			names += len(p.Names)
		}
	}
	if commits > 40+writeBurst {
		t.Errorf("%d commits in 40 s", commits)
	}
	if names < 500 {
		t.Errorf("%d engines named, of 500 that may be", names)
	}
}

func TestOperatorsWord(t *testing.T) {
	w := newWorld(t, 3, 4, virtual.Seed(t))
	w.backends[1].Down, w.backends[1].Reason = true, "the rack is being moved"
	w.backends = slices.Clone(w.backends)
	w.setBackends()
	w.run(time.Minute)
	if len(w.written) > 0 {
		t.Errorf("written down: %v", w.written)
	}
}

// TestLateBackend: reports about an engine count before this node knows it.
func TestLateBackend(t *testing.T) {
	b := New(Config{Self: "a", Interval: time.Second, Timeout: time.Second})
	b.SetNodes([]string{"b", "c"}, start)
	b.SetPeer("b", []Report{{Backend: 7, Failing: true, Reason: Refused}}, start)
	b.SetBackends([]Backend{{Key: 7, Name: "late"}}, start.Add(time.Second))
	if got := b.Avoid(nil, start.Add(time.Second)); !slices.Equal(got, []uint32{7}) {
		t.Errorf("avoids %v", got)
	}
	b.DropPeer("b")
	if got := b.Avoid(nil, start.Add(time.Second)); len(got) > 0 {
		t.Errorf("avoids %v for one who has gone", got)
	}
}

func TestReportersMoveLittle(t *testing.T) {
	var nodes []string
	for i := range 20 {
		nodes = append(nodes, nodeName(i))
	}
	moved, load := 0, map[string]int{}
	for key := range uint32(2000) {
		all, less := Assigned(key, nodes, Reporters), Assigned(key, nodes[:19], Reporters)
		if len(all) != Reporters || len(less) != Reporters {
			t.Fatalf("%v, %v", all, less)
		}
		for _, n := range all {
			load[n]++
			if n != nodeName(19) && !slices.Contains(less, n) {
				moved++
			}
		}
	}
	if moved > 0 {
		t.Errorf("%d probes moved although their node stayed", moved)
	}
	for n, count := range load {
		if count < 200 || count > 400 {
			t.Errorf("%s probes %d engines of 2000, 300 are fair", n, count)
		}
	}
}

func TestRestarts(t *testing.T) {
	b := New(Config{Self: "a"})
	b.SetBackends([]Backend{{Key: 1, Name: "e", Generation: 4}}, start)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for i, step := range []struct {
		started    time.Time
		generation uint32
		ended      uint32
		again      bool
	}{
		{at(0), 4, 0, false},
		{at(0.7), 4, 0, false},
		{at(0), 5, 0, false}, // raised by another node for a reset cache
		{at(90), 6, 5, true}, // restarted; another node was faster
		{at(0.7), 6, 0, false},
		{at(90), 6, 0, false},
		{time.Time{}, 6, 0, false},
	} {
		if ended, again := b.Started(1, step.started, step.generation); ended != step.ended || again != step.again {
			t.Errorf("step %d: %d, %v", i, ended, again)
		}
	}
	if _, again := b.Forgot(1, start); again {
		t.Error("guesses although the process tells when it began")
	}
}

func TestForgotIsRare(t *testing.T) {
	b := New(Config{Self: "a"})
	b.SetBackends([]Backend{{Key: 1, Name: "e", Generation: 4}}, start)
	times := 0
	for s := range 2 * 3600 {
		if ended, again := b.Forgot(1, start.Add(time.Duration(s)*time.Second)); again {
			times++
			if ended != 4 {
				t.Fatalf("ended %d", ended)
			}
		}
	}
	if times < 2 || times > 8 {
		t.Errorf("told %d times in two hours", times)
	}
}

func TestCodec(t *testing.T) {
	want := []Report{
		{Backend: 1, OK: true, Since: 1_800_000_000, Started: 1_700_000_000},
		{Backend: 0xffffffff, Failing: true, Passive: true, Reason: Status5xx, Since: 5},
		{Backend: 3, OK: true, Suspect: true, Reason: Reset},
	}
	blob := AppendReports(nil, want)
	got, err := ParseReports(nil, blob)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	longer := []byte{entryBytes + 2}
	for i := 1; i < len(blob); i += entryBytes {
		longer = append(append(longer, blob[i:i+entryBytes]...), 0xaa, 0xbb)
	}
	if got, err := ParseReports(nil, longer); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range [][]byte{nil, {entryBytes - 1}, {entryBytes, 1}, append([]byte{entryBytes}, make([]byte, entryBytes*(MaxReports+1))...)} {
		if _, err := ParseReports(nil, bad); err == nil {
			t.Errorf("took %d bytes", len(bad))
		}
	}
	if n := len(AppendReports(nil, make([]Report, MaxReports+10))); n != 1+entryBytes*MaxReports {
		t.Errorf("%d bytes", n)
	}
}

func FuzzParseReports(f *testing.F) {
	f.Add(AppendReports(nil, []Report{{Backend: 1, OK: true}, {Backend: 2, Failing: true, Reason: 200}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, section []byte) {
		got, err := ParseReports(nil, section)
		if err != nil {
			return
		}
		b := New(Config{Self: "a", Interval: time.Second})
		b.SetBackends([]Backend{{Key: 1, Name: "x"}, {Key: 2, Name: "y"}}, start)
		b.SetNodes([]string{"b"}, start)
		b.SetPeer("b", got, start)
		b.Proposals(start)
		again, err := ParseReports(nil, AppendReports(nil, got))
		if err != nil || len(again) != len(got) {
			t.Fatalf("%d became %d: %v", len(got), len(again), err)
		}
	})
}
