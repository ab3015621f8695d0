package scenario

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/fleet"
)

func TestParse(t *testing.T) {
	text := `
# what happens
12.5s partition node-0,node-1 | node-2 for 10s   # and is undone
3s kill leader, node-1
1m30s link node-0 > * loss=1 delay=20ms for 1s
20s flood rate=3.5 for 4s
4s clock node-2 step=-5s
`
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := Schedule{
		{At: 3 * time.Second, Kind: "kill", Groups: [][]string{{"leader", "node-1"}}},
		{At: 4 * time.Second, Kind: "clock", Groups: [][]string{{"node-2"}}, Params: []Param{{"step", "-5s"}}},
		{At: 12500 * time.Millisecond, Kind: "partition", Groups: [][]string{{"node-0", "node-1"}, {"node-2"}}, For: 10 * time.Second},
		{At: 20 * time.Second, Kind: "flood", Params: []Param{{"rate", "3.5"}}, For: 4 * time.Second},
		{At: 90 * time.Second, Kind: "link", Groups: [][]string{{"node-0"}, {"*"}}, Params: []Param{{"loss", "1"}, {"delay", "20ms"}}, For: time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	if again, err := Parse(got.String()); err != nil || !reflect.DeepEqual(again, got) {
		t.Errorf("printed and read again: %v\n%v", err, again)
	}
	if end := got.End(); end != 91*time.Second {
		t.Errorf("it ends at %v", end)
	}
	if got[4].param("delay") != "20ms" || got[4].param("jitter") != "0s" || got[0].param("step") != "" {
		t.Error("settings or their defaults")
	}
}

func TestParseErrors(t *testing.T) {
	for line, want := range map[string]string{
		"kill node-0":                         `"kill" is not a time`,
		"-1s kill node-0":                     `"-1s" is not a time`,
		"1s":                                  "no fault: write one of kill",
		"1s kil node-0":                       `"kil" is not a fault: write one of kill`,
		"1s kill":                             "write kill NODE,...",
		"1s kill ,":                           "write kill NODE,...",
		"1s kill node-0 for soon":             "write a duration",
		"1s kill node-0 for 0s":               "write a duration",
		"1s pause node-0":                     "needs a duration",
		"1s amnesia engine-0 for 1s":          "has no duration: leave out for 1s",
		"1s partition node-0":                 "write partition NODE,... | NODE,...",
		"1s partition node-0 | for 3s":        "write partition NODE,... | NODE,...",
		"1s partition node-0 > node-1":        "groups are not joined with >",
		"1s kill node-0 | node-1":             "groups are not joined with |",
		"1s link node-0 > node-1 loss=2":      "loss=2: write a share from 0 to 1",
		"1s link node-0 > node-1 los=0.2":     `has no setting "los"`,
		"1s link node-0 > * loss=0 loss=1":    "is given twice",
		"1s slow engine-0 factor=NaN for 1s":  "write a number above 0",
		"1s slow engine-0 factor=0 for 1s":    "write a number above 0",
		"1s clock node-0 step=0s":             "write a duration, forward or back",
		"1s break engine-0 count=1.5 for 1s":  "write a whole number",
		"200h kill node-0":                    "is not a time",
		"1s flood node-0 for 1s":              "write flood",
		"1s slow-disk node-0 by=never for 1s": "is not a time",
	} {
		_, err := Parse("2s kill node-1\n\n" + line)
		if err == nil || !errors.Is(err, ErrSchedule) || !strings.Contains(err.Error(), "line 3: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q of line 3", line, err, want)
		}
	}
	if _, err := Parse(strings.Repeat("1s kill node-0\n", maxEvents+1)); err == nil {
		t.Error("a schedule without a bound")
	}
}

func TestMembers(t *testing.T) {
	nodes, engines := fleet.Names("node", 2), fleet.Names("engine", 1)
	for line, ok := range map[string]bool{
		"1s kill node-1": true, "1s kill node-2": false, "1s kill engine-0": false, "1s kill leader,follower": true,
		"1s crash engine-0": true, "1s crash node-0": false, "1s crash leader": false,
		"1s link engine-0 > leader": true, "1s link clients > *": true, "1s link missing > *": false, "1s partition node-0 | *": false,
	} {
		s, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.checkMembers(nodes, engines); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func Sample(name string, seed uint64) (Schedule, error) {
	s, ok := find(name)
	if !ok {
		return nil, fmt.Errorf("no scenario %q", name)
	}
	return s.generate(newDice(seed, s.Nodes, s.Engines, s.Duration)).sorted(), nil
}

func FuzzParse(f *testing.F) {
	f.Add("12.5s partition node-0,node-1 | node-2 for 10s\n3s kill leader")
	f.Add("1m30s link node-0 > * loss=1 delay=20ms for 1s # x")
	for _, s := range List() {
		sample, err := Sample(s.Name, 1)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(sample.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Errorf("%q was read as %v and printed as %q, which is read as %v: %v", text, s, s.String(), again, err)
		}
	})
}

func TestCatalogue(t *testing.T) {
	for _, s := range List() {
		if _, err := Parse(s.Name); s.Proves == "" || len(s.Must) == 0 || err == nil {
			t.Errorf("%s says too little of itself", s.Name)
		}
		for _, must := range s.Must {
			found := false
			for _, i := range Invariants() {
				found = found || i.Name == must
			}
			if !found {
				t.Errorf("%s must exercise %q, which is none", s.Name, must)
			}
		}
		different := false
		for seed := range uint64(200) {
			c, _, err := Config{Scenario: s.Name, Seed: seed, Binary: "x"}.checked()
			if err != nil {
				t.Fatalf("%s, seed %d: %v", s.Name, seed, err)
			}
			again, err := Sample(s.Name, seed)
			if err != nil || again.String() != c.Schedule.String() {
				t.Errorf("%s, seed %d: %v\n%s\nand\n%s", s.Name, seed, err, c.Schedule, again)
			}
			if read, err := Parse(c.Schedule.String()); err != nil || !reflect.DeepEqual(read, c.Schedule) {
				t.Errorf("%s, seed %d: %v\n%s", s.Name, seed, err, c.Schedule)
			}
			for _, e := range c.Schedule {
				if e.At < leadTime || e.At+e.For > s.Duration-tailTime {
					t.Errorf("%s, seed %d: %s is not within %v and %v", s.Name, seed, e, leadTime, s.Duration-tailTime)
				}
			}
			first, _ := Sample(s.Name, 0)
			different = different || again.String() != first.String()
		}
		if !different {
			t.Errorf("%s: seeds do not matter", s.Name)
		}
	}
}

func TestSoakRepeatsWithOtherSeeds(t *testing.T) {
	c, s, err := Config{Scenario: "router-loss", Seed: 5, Soak: 5 * time.Minute, Binary: "x"}.checked()
	if err != nil {
		t.Fatal(err)
	}
	if c.Duration != 5*time.Minute || len(c.Schedule) < 8 || c.Schedule.End()+tailTime > c.Duration {
		t.Errorf("%v of traffic, %d events until %v", c.Duration, len(c.Schedule), c.Schedule.End())
	}
	second, err := Sample(s.Name, 6)
	if err != nil || c.Schedule[1].At != second[0].At+s.Duration-leadTime || c.Schedule[1].String() == second[0].String() {
		t.Errorf("the second round is %v, of the next seed %v", c.Schedule[1], second[0])
	}
}

func TestConfigIsChecked(t *testing.T) {
	sched, err := Parse("30s kill node-0 for 5s")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := Config{Scenario: "router-loss", Schedule: sched, Binary: "x"}.checked()
	if err != nil || c.Duration < 35*time.Second+tailTime {
		t.Errorf("a longer schedule: %v of traffic, %v", c.Duration, err)
	}
	if c.command != "grapevine-lab chaos run router-loss --seed 0 --nodes 3 --schedule FILE --duration 46s --router x" {
		t.Errorf("to be repeated by %q", c.command)
	}
	c, _, err = Config{Scenario: "router-loss", Seed: 3, Soak: time.Hour, Rate: 20}.checked()
	if err != nil || c.command != "grapevine-lab chaos run router-loss --seed 3 --nodes 3 --soak 1h0m0s --rate 20" {
		t.Errorf("to be repeated by %q, %v", c.command, err)
	}
	dir := t.TempDir()
	for what, change := range map[string]func(*Config){
		"name": func(c *Config) { c.Scenario = "" }, "no such promise": func(c *Config) { c.LeaveOut = []string{"flight"} }, "few nodes": func(c *Config) { c.Nodes = 1 }, "many nodes": func(c *Config) { c.Nodes = 99 },
		"short": func(c *Config) { c.Duration = time.Second }, "too short for the schedule": func(c *Config) { c.Duration = 40 * time.Second },
		"kept things": func(c *Config) { c.Keep = dir[:strings.LastIndexByte(dir, '/')] },
	} {
		c := Config{Scenario: "router-loss", Schedule: sched, Binary: "x"}
		change(&c)
		if _, _, err := c.checked(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestLinksHealBeforeTheNextFault(t *testing.T) {
	var w world
	healed := false
	next := make(chan struct{}) // closed when the next fault begins
	heal := func() error {
		go func() {
			defer close(next)
			w.laid(nil)
		}()
		select {
		case <-next:
			t.Error("a fault began while links healed, which removes it")
		case <-time.After(10 * time.Millisecond):
		}
		healed = true
		return nil
	}
	first, second := w.laid(heal), w.laid(heal)
	if err := first(t.Context()); err != nil || healed {
		t.Fatalf("healed with a fault in effect: %v, %v", healed, err)
	}
	if err := second(t.Context()); err != nil || !healed {
		t.Errorf("not healed: %v", err)
	}
	<-next
}

func TestFaultsOfANodeTakeTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var w world
		begin := func(line string) (over func(), waits func() bool) {
			t.Helper()
			s, err := Parse("1s " + line)
			if err != nil {
				t.Fatal(err)
			}
			turn := make(chan func(), 1)
			go func() { turn <- w.alone(&s[0], s[0].Groups) }()
			return func() { (<-turn)() }, func() bool { synctest.Wait(); return len(turn) == 0 }
		}
		stopped, waits := begin("stop node-2,node-1 for 1s")
		if waits() {
			t.Error("the first fault waits")
		}
		killed, killWaits := begin("kill node-1,node-2 for 1s")
		paused, pauseWaits := begin("pause node-1 for 1s")
		if !killWaits() || !pauseWaits() {
			t.Error("a fault begins at nodes that another one has stopped, and that are not ready again")
		}
		for _, line := range []string{"kill node-3", "crash engine-1", "start node-1", "partition node-1 | node-2"} {
			if over, waits := begin(line); waits() {
				t.Errorf("%s waits for other nodes", line)
			} else {
				over()
			}
		}
		stopped()
		if killWaits() && pauseWaits() {
			t.Error("all wait")
		}
		killed()
		paused()
		if over, waits := begin("roll node-1"); waits() {
			t.Error("a fault waits for one that has begun and ends no node")
		} else {
			over()
		}
	})
}
