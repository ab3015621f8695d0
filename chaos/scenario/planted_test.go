package scenario

import (
	"bytes"
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/plant"

	"grapevine.example/chaos/fleet"
)

const plantedEnv = "GRAPEVINE_PLANTED"

// sown is a short run on loopback that must find a planted defect.
type sown struct {
	defect   string
	schedule string
	load     Load
	pace     pace
	events   bool
	crowd    bool // clients crowd the queue
}

var brisk = pace{calm: time.Second, lead: 2 * time.Second, tail: 4 * time.Second}

// filled leaves time until requests wait.
var filled = pace{calm: 3 * time.Second, lead: 4 * time.Second, tail: 8 * time.Second}

var sowing = []sown{
	{defect: "broken-answer-is-whole", schedule: "3s break engine-0,engine-1,engine-2 count=5 after=2000 for 2s"},
	{defect: "asks-twice"},
	{defect: "retried-midway", schedule: "3s break engine-0,engine-1,engine-2 count=5 after=2000 for 2s"},
	{defect: "drain-cuts-answers", schedule: "4s stop node-1 for 1s", load: Load{Rate: 15, Long: 0.4, LongOutput: 900}},
	{defect: "closes-before-it-answers", schedule: "4s stop node-1 for 1s", load: Load{Rate: 25, Long: 0.4, LongOutput: 900}},
	{defect: "asks-the-same-again", schedule: "3s break engine-0,engine-1,engine-2 count=10000 after=0 for 4s"},
	{defect: "draining-is-active", schedule: "3s drain engine-0,engine-1 for 3s"},
	{defect: "taken-for-repeated"},
	{defect: "reads-what-it-has"},
	{defect: "founds-alone"},
	{defect: "batch-lost"},
	// What one skipped batch held may be evicted, or told again, before trees are compared: 1 pause of 18 showed nothing.
	{defect: "resume-skips-a-batch", schedule: "4s pause node-2 for 4s\n10s pause node-1 for 4s\n16s pause node-0 for 4s", load: Load{Rate: 15}},
	{defect: "snapshot-ends-early", schedule: "6s stop node-2 for 1s", load: Load{Rate: 15}},
	{
		defect: "turns-without-a-peer", schedule: "10s kill node-2 for 11s", load: Load{Rate: 15},
		pace: pace{calm: 3 * time.Second, lead: 10 * time.Second, tail: time.Second},
	},
	{defect: "gap-unseen", events: true, schedule: "4s mute engine-0,engine-1 for 5s\n6s amnesia engine-0,engine-1", load: Load{Rate: 15}},
	{defect: "first-come", crowd: true, load: beside, pace: filled},
	{defect: "peers-use-nothing", crowd: true, load: beside, pace: filled},
	{defect: "each-for-itself", crowd: true, load: beside},
	{defect: "turn-not-told", crowd: true, load: beside},
	{defect: "departures-unseen", load: Load{Long: 0.4, Departing: 0.4}},
	{defect: "departed-stay-counted", load: Load{Departing: 0.2}},
	{
		defect: "watcher-per-answer", schedule: "7s amnesia engine-0", load: Load{Rate: 20},
		pace: pace{calm: 4 * time.Second, lead: 7 * time.Second, tail: 9 * time.Second},
	},
	{defect: "ready-to-the-end", schedule: "3s stop node-1 for 1s"},
	{defect: "ends-a-stream-that-is-gone", schedule: "3s kill node-2 for 6s"},
}

// fallow are runs without a defect; together they exercise every promise.
var fallow = []sown{{
	schedule: "12s kill node-2 for 7s\n12.2s drain engine-3 for 3s\n14s break engine-0,engine-1 count=5 after=2000 for 2s\n14s mute engine-2 for 4s\n22s stop node-1 for 1s",
	events:   true,
	load:     Load{Long: 0.05, Departing: 0.1},
	pace:     pace{calm: warmUp, lead: leadTime, tail: tailTime},
}, {
	schedule: "5s kill node-2 for 4s\n7s drain engine-3 for 2s\n13s stop node-1 for 1s",
	crowd:    true,
	load:     beside,
	pace:     filled,
}}

func (s *sown) run(t *testing.T, program string) *run {
	t.Helper()
	schedule, err := Parse(s.schedule)
	if err != nil {
		t.Fatal(err)
	}
	p := s.pace
	if p == (pace{}) {
		p = brisk
	}
	cfg := Config{Scenario: "planted", Seed: 1, Nodes: 3, Schedule: schedule, Duration: max(p.lead, schedule.End()) + p.tail, Binary: program, Log: zerolog.Nop()}
	if s.defect != "" {
		cfg.Env = []string{plant.Env + "=" + s.defect}
	}
	r := &run{cfg: cfg, s: &Scenario{Name: cfg.Scenario, Nodes: cfg.Nodes, Engines: 4, Load: s.load, Events: s.events}, pace: p}
	if s.crowd {
		r.s.Clients, r.s.Queue = crowded(24), queueOf{4, 96}
	}
	return r
}

func (s *sown) verdicts(t *testing.T, program string) map[string]Verdict {
	t.Helper()
	began := time.Now()
	e, err := s.run(t, program).play(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]Verdict)
	for _, v := range judgeAll(e, nil) {
		out[v.Name] = v
	}
	t.Logf("%.0f s, %d attempts", time.Since(began).Seconds(), out[oneOutcome.Name].Checked)
	return out
}

func TestPlanted(t *testing.T) {
	program := os.Getenv(plantedEnv)
	if program == "" {
		t.Skipf("%s names no program with planted defects: make chaos-planted", plantedEnv)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(plant.Env)) {
		t.Fatalf("%s has no planted defects: make build-chaos", program)
	}
	t.Run("nothing", func(t *testing.T) {
		if testing.Short() {
			t.Skip("make chaos-short has runs without a defect")
		}
		held := make(map[string]bool)
		for i := range fallow {
			for name, v := range fallow[i].verdicts(t, program) {
				if held[name] = held[name] || v.State == Held; v.State == Violated {
					t.Errorf("%s without a defect: %d checked, %s: %+v", name, v.Checked, v.Note, v.Violations)
				}
			}
		}
		for name, ok := range held {
			if !ok {
				t.Errorf("no run without a defect exercises %s", name)
			}
		}
	})
	for _, d := range plant.All() {
		t.Run(d.Name, func(t *testing.T) {
			if testing.Short() && d.Breaks == hitRateRecovers.Name {
				t.Skip("hit rates of a few seconds say nothing where others use the machine, too")
			}
			t.Parallel()
			i := slices.IndexFunc(sowing, func(s sown) bool { return s.defect == d.Name })
			verdicts := sowing[i].verdicts(t, program)
			v := verdicts[d.Breaks]
			if v.State != Violated {
				t.Errorf("%s is %s although %s (%d checked, %s)", d.Breaks, v.State, d.Wrong, v.Checked, v.Note)
			} else {
				t.Logf("%s: %s: %d cases, the first: %+.300v", d.Wrong, d.Breaks, v.Count, v.Violations[0])
			}
			for name, v := range verdicts {
				if v.State == Violated && name != d.Breaks {
					t.Logf("and %s: %d cases", name, v.Count)
				}
			}
		})
	}
}

func TestSowing(t *testing.T) {
	breaks := make(map[string]bool)
	for _, d := range plant.All() {
		if !slices.ContainsFunc(Invariants(), func(i Invariant) bool { return i.Name == d.Breaks }) {
			t.Errorf("%s breaks %q, which is no promise", d.Name, d.Breaks)
		}
		if !slices.ContainsFunc(sowing, func(s sown) bool { return s.defect == d.Name }) {
			t.Errorf("%s has no run in which it is to be found", d.Name)
		}
		breaks[d.Breaks] = true
	}
	for _, i := range Invariants() {
		if !breaks[i.Name] {
			t.Errorf("no planted defect breaks %s: that a run can find it broken is not shown", i.Name)
		}
	}
	for _, s := range slices.Concat(sowing, fallow) {
		r := s.run(t, "")
		if words := needs(r.s, &r.cfg); len(words) > 0 {
			t.Errorf("%q: the schedule needs %v of the machine", s.defect, words)
		}
		if err := r.cfg.Schedule.checkMembers(fleet.Names("node", r.cfg.Nodes), fleet.Names("engine", r.s.Engines)); err != nil {
			t.Errorf("%q: %v", s.defect, err)
		}
	}
}
