package scenario

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func chapters(t *testing.T, keep string, moments ...time.Duration) *evidence {
	t.Helper()
	base := evidence{engines: fleet.Names("engine", 2), nodes: fleet.Names("node", 3), struck: 12 * sec, calm: 4 * sec, limit: 10 * sec, width: 2 * sec}
	l, log, o := newLedger(), &marks{}, &observer{seen: make(map[string]*seen)}
	for _, n := range base.nodes {
		s := &seen{backends: map[string]*track[string]{"engine-0": {}, "engine-1": {}}, caches: map[string]*track[string]{"engine-0": {}, "engine-1": {}}}
		s.backends["engine-1"].note(span{100 * sec, 100 * sec}, absent)
		s.backends["engine-1"].note(span{130 * sec, 130 * sec}, absent)
		o.seen[n] = s
	}
	kill := &Mark{Event: event(50*sec, 5*sec, "kill node-1"), Members: [][]string{{"node-1"}}, Began: 50 * sec, Struck: 50 * sec, Ending: 55 * sec, Over: 55 * sec}
	crash := &Mark{Event: event(200*sec, 5*sec, "crash engine-0"), Members: [][]string{{"engine-0"}}, Began: 200 * sec, Struck: 200 * sec, Ending: 205 * sec, Over: 205 * sec}
	log.list = []*Mark{kill, crash}
	for i := range 3000 {
		at := time.Duration(i) * sec / 10
		a := &Attempt{ID: fmt.Sprint("a", i), Request: i, Last: true, Turn: 2, Shape: chatStream, Sent: at, Head: at + 1, First: at + 2, End: at + 50*time.Millisecond, Kept: at,
			Node: base.nodes[i%3], Backend: "engine-0", Outcome: Complete, Status: 200, Text: 40, Want: 40, Prompt: 1000, Cached: 900 + i%100, Possible: 1000, By: "engine-0"}
		v := visit{Engine: "engine-0", Began: at, Ended: a.End}
		switch {
		case i%50 == 7:
			a.Outcome, v.Departed = Departed, true
			if i == 1507 {
				v.Ended = a.End + 2*sec
			}
		case i%700 == 1: // 1, 701, 1401, 2101, 2801: on nodes 1, 2, 0, 1, 2; none at an excused time
			a.Outcome, a.Detail, v.Departed = Broken, "reset", true
		case i == 520:
			a.Outcome, a.Detail, v.Departed = Broken, "reset", true
		case i == 1200:
			a.Backend, v.Engine = "engine-1", "engine-1"
		}
		l.visits[a.ID] = []visit{v}
		l.add(a)
	}
	l.visits["unknown"] = []visit{{Engine: "engine-0", Began: 150 * sec, Ended: 151 * sec}}
	f, err := newFolder(base, l, log, o, keep)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range moments {
		if err := f.fold(m); err != nil {
			t.Fatal(err)
		}
		if n := len(l.attempts); n > 3000-int(m/(sec/10))+20 {
			t.Errorf("%d attempts are held after all before %v were folded", n, m)
		}
	}
	e := base
	e.past, e.harness = f.past, f.mem
	e.attempts, e.visits = l.take(math.MaxInt64)
	e.marks, e.seen = log.snapshot(), o.seen
	e.stopped, e.drained = 299*sec, 300*sec
	if err := f.write(&e); err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	return e.whole()
}

func TestFoldedRunsSayTheSame(t *testing.T) {
	dir := t.TempDir()
	whole := chapters(t, "")
	folded := chapters(t, dir, 31*sec, 32*sec, 33*sec, 111*sec, 160*sec, 159*sec, 250*sec)
	want, got := verdicts(whole), verdicts(folded)
	for name, v := range want {
		if !reflect.DeepEqual(v, got[name]) {
			t.Errorf("%s: folded\n%+v\nat the end\n%+v", name, got[name], v)
		}
	}
	for name, n := range map[string]int{streamsSurvive.Name: 5, requestsAnswered.Name: 5, departuresEnd.Name: 1, removedStayQuiet.Name: 1, oneOutcome.Name: 1} {
		if got[name].Count != n {
			t.Errorf("%s: %d violations, want %d: %+v", name, got[name].Count, n, got[name].Violations)
		}
	}
	if a, b := whole.past.slices, folded.past.slices; !reflect.DeepEqual(a, b) {
		t.Errorf("timelines of %d and %d slices differ", len(a), len(b))
	}
	r := &run{cfg: Config{Scenario: "router-loss", Nodes: 3, Duration: 300 * sec}, s: &List()[0]}
	a, b := r.report(whole), r.report(folded)
	if a.Requests != 3000 || b.Requests != a.Requests || b.Attempts != a.Attempts || !reflect.DeepEqual(a.Outcomes, b.Outcomes) || b.Harness.PeakMiB <= 0 {
		t.Errorf("%d requests, %v; folded %d, %v", a.Requests, a.Outcomes, b.Requests, b.Outcomes)
	}
	text, err := os.ReadFile(filepath.Join(dir, "attempts.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var line struct {
		ID     string
		Visits []visit
	}
	if err := json.Unmarshal([]byte(lines[2999]), &line); err != nil || len(lines) != 3000 || line.ID != "a2999" || len(line.Visits) != 1 {
		t.Errorf("%d lines were kept, %v, the last is %s", len(lines), err, lines[len(lines)-1])
	}
}

func TestViolationsAreBounded(t *testing.T) {
	var f finding
	for range 6 * maxCases {
		f.violate(0, "here", "wrong")
	}
	if len(f.violations) != maxCases || f.more != 5*maxCases {
		t.Errorf("%d kept, %d more", len(f.violations), f.more)
	}
}

func TestSlices(t *testing.T) {
	for length, want := range map[time.Duration]time.Duration{36 * sec: sec, 1200 * sec: sec, 1201 * sec: 2 * sec, time.Hour: 3 * sec, maxTime: 504 * sec} {
		if got := sliceOf(length); got != want {
			t.Errorf("%v in slices of %v, want %v", length, got, want)
		}
	}
}

func TestSlicesTakeLateAttempts(t *testing.T) {
	e := &evidence{attempts: []*Attempt{{Sent: 5 * sec, First: -1, Outcome: Complete}}}
	p := past{until: 10 * sec}
	if out := e.slices(&p, 12*sec); len(out) != 2 || out[0].Answered != 1 {
		t.Errorf("%+v", out)
	}
}

func TestGrowth(t *testing.T) {
	for _, c := range []struct {
		what  string
		heap  func(at time.Duration) float64
		pid   func(at time.Duration) int
		grown bool
		lives int
	}{
		{"flat", func(time.Duration) float64 { return 20 }, nil, false, 1},
		{"grown at first", func(at time.Duration) float64 { return min(20+at.Minutes()*100, 300) }, nil, false, 1},
		{"a burst", func(at time.Duration) float64 {
			return map[bool]float64{true: 500, false: 20}[at > 1000*sec && at < 1050*sec]
		}, nil, false, 1},
		{"growing", func(at time.Duration) float64 { return 20 + at.Minutes() }, nil, true, 1},
		{"growing, in short lives", func(at time.Duration) float64 { return 20 + at.Minutes() }, func(at time.Duration) int { return int(at / (2 * time.Minute)) }, false, 0},
		{"growing in the second of two lives", func(at time.Duration) float64 { return 20 + max(0, (at-10*time.Minute).Minutes()*2) },
			func(at time.Duration) int { return int(at / (10 * time.Minute)) }, true, 2},
	} {
		e := &evidence{nodes: []string{"node-0"}, seen: map[string]*seen{"node-0": {}}, calm: 4 * sec, stopped: 20 * time.Minute}
		for at := time.Duration(0); at < 21*time.Minute; at += 2 * sec {
			r := resources{at: at, pid: 7, used: [len(measures)]float64{heap: c.heap(at) * (1 << 20), goroutines: 50, files: 30, resident: 50 << 20}}
			if c.pid != nil {
				r.pid = c.pid(at)
			}
			e.seen["node-0"].usage = append(e.seen["node-0"].usage, r)
		}
		var f finding
		note := e.growth(&f)
		if (len(f.violations) > 0) != c.grown || f.checked != c.lives || strings.Count(note, "node-0") != c.lives {
			t.Errorf("%s: %d lives, %+v, %s", c.what, f.checked, f.violations, note)
		}
	}
}

func TestEnduranceSparesOne(t *testing.T) {
	for seed := range uint64(500) {
		s, err := Sample("endurance", seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range s {
			if (e.Kind == "kill" || e.Kind == "stop") && (e.Groups[0][0] == "node-0" || e.Groups[0][0] == LeaderName) {
				t.Fatalf("seed %d: %s", seed, e)
			}
		}
	}
}

func TestLongPictures(t *testing.T) {
	r := &Report{Scenario: "endurance", SliceS: 3}
	for i := range 1200 {
		hit := 0.9
		r.Timeline = append(r.Timeline, Slice{FromS: float64(3 * i), Sent: 900, Answered: 890, Hit: &hit, TTFT50: &hit, TTFT99: &hit})
	}
	for i := range 600 {
		over := float64(6*i + 5)
		r.Events = append(r.Events, Happened{Event: fmt.Sprintf("%ds %s node-1 for 5s", 6*i, []string{"kill", "pause", "stop"}[i%3]), BeganS: float64(6 * i), OverS: &over})
	}
	text := string(picture(r))
	if len(text) > 500_000 || strings.Count(text, ">kill</text>") != 1 || strings.Contains(text, ">6s pause node-1 for 5s</text>") || !strings.Contains(text, "<title>6s pause node-1 for 5s</title>") {
		t.Errorf("%d bytes, %d rows of kills", len(text), strings.Count(text, ">kill</text>"))
	}
	if !strings.Contains(text, "in 3 seconds") {
		t.Error("it does not say how long a slice is")
	}
}
