package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

func (m *machine) run(index uint64, c Command) outcome {
	e := entry{at: int64(index) * 1000, command: c}
	binary.BigEndian.PutUint64(e.request[:], index)
	return m.apply(index, e)
}

func must(t testing.TB, m *machine, index uint64, c Command) {
	t.Helper()
	if o := m.run(index, c); o.Refuse != nil {
		t.Fatalf("%T: %v", c, o.Refuse)
	}
}

func ptr[T any](v T) *T { return &v }

func TestGenerationsGrow(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a", "b", "c"))
	must(t, m, 2, RemoveBackends{[]string{"b"}})
	must(t, m, 3, NewGeneration{Name: "a", From: 1})
	must(t, m, 4, add("d", "e"))
	must(t, m, 5, UpdateBackend{Name: "c", URL: ptr("http://elsewhere.test:1")})
	want := map[string]uint32{"a": 2, "c": 2, "d": 2, "e": 2}
	st := m.state()
	if len(st.Backends) != len(want) {
		t.Fatalf("%d backends", len(st.Backends))
	}
	for name, w := range want {
		b, _ := st.Backend(name)
		if b.Generation != w {
			t.Errorf("%s has generation %d, want %v", name, b.Generation, w)
		}
	}
}

// A returning name gets a higher generation.
func TestNameThatComesBackIsNewer(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a", "b"))
	for index := range uint64(4) {
		must(t, m, 2+index, NewGeneration{Name: "b"})
	}
	must(t, m, 6, RemoveBackends{[]string{"a", "b"}})
	m, err := restoreMachine(m.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	must(t, m, 7, add("b"))
	if b, _ := m.state().Backend("b"); b.Generation != 6 {
		t.Errorf("generation %d, had 5", b.Generation)
	}
	must(t, m, 8, RemoveBackends{[]string{"b"}})
	must(t, m, 9, add("c", "b"))
	if b, _ := m.state().Backend("b"); b.Generation != 7 {
		t.Errorf("generation %d, had 6", b.Generation)
	}
}

func TestRefusals(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a", "b"))
	must(t, m, 2, SetRules{Text: "x"})
	must(t, m, 3, SetConstants{Constants{KeyID: 1, BlockBytes: 64, Cluster: "one"}})
	same := backend("z")
	same.URL = backend("a").URL
	twice := add("n", "m")
	twice.Backends[1].URL = twice.Backends[0].URL
	many := make([]HotChange, MaxHot+1)
	for i := range many {
		many[i] = HotChange{Anchor: uint64(i), R: 1, Expires: 1}
	}
	before := m.snapshot()
	for i, c := range []struct {
		command Command
		is      error
		text    string
	}{
		{add("c", "a"), ErrExists, "backend a exists already"},
		{add("c", "c"), ErrExists, "backend c is given twice"},
		{AddBackends{[]Backend{backend("c"), same}}, ErrExists, "url http://a.test:8000 of backend z is backend a already"},
		{twice, ErrExists, "url http://n.test:8000 is given for n and for m"},
		{UpdateBackend{Name: "q"}, ErrNotFound, "backend q does not exist"},
		{UpdateBackend{Name: "a", IfVersion: ptr(uint64(9)), Weight: ptr(2.0)}, ErrConflict, "backend a has version 1, not 9"},
		{UpdateBackend{Name: "a", URL: ptr(backend("b").URL)}, ErrExists, "is backend b already"},
		{SetBackendState{Names: []string{"a", "q"}, Action: Drain}, ErrNotFound, "backend q"},
		{NewGeneration{Name: "q"}, ErrNotFound, "backend q"},
		{NewGeneration{Name: "a", From: 7}, ErrConflict, "backend a has generation 1, not 7"},
		{RemoveBackends{[]string{"a", "q"}}, ErrNotFound, "backend q"},
		{SetRules{Text: "y", IfVersion: ptr(uint64(0))}, ErrConflict, "version 2, not 0"},
		{SetHot{many}, ErrTooMany, "1025 hot prefixes"},
		{SetConstants{Constants{KeyID: 1, BlockBytes: 128, Cluster: "one"}}, ErrConflict, `the fleet has cluster "one", block bytes 64, key id 00000001, this node has cluster "one", block bytes 128`},
	} {
		o := m.run(uint64(100+i), c.command)
		if o.Refuse == nil || !errors.Is(o.Refuse, c.is) || !strings.Contains(o.Refuse.Text, c.text) {
			t.Errorf("%+v: refusal is %v", c.command, o.Refuse)
		}
		if o.Result.Changed {
			t.Errorf("%+v: refused, and yet something changed", c.command)
		}
	}
	// Only the stored outcomes differ.
	m.outcomes, m.order = map[requestID]outcome{}, nil
	n, err := restoreMachine(before)
	if err != nil {
		t.Fatal(err)
	}
	n.outcomes, n.order = map[requestID]outcome{}, nil
	if !bytes.Equal(m.snapshot(), n.snapshot()) {
		t.Error("refused commands have changed the machine")
	}
}

func TestDrainOutlivesDown(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a"))
	for i, step := range []struct {
		action Action
		want   BackendState
		since  int64
	}{
		{Drain, Draining, 2000}, {Drain, Draining, 2000}, {MarkDown, Down, 4000}, {MarkUp, Draining, 5000},
		{Resume, Active, 6000}, {MarkDown, Down, 7000}, {Drain, Down, 7000}, {Resume, Down, 7000}, {MarkUp, Active, 10000},
	} {
		must(t, m, uint64(i+2), SetBackendState{Names: []string{"a"}, Action: step.action, Reason: step.action.String()})
		b, _ := m.state().Backend("a")
		if b.State != step.want || b.Since != step.since {
			t.Errorf("step %d, %v: %v since %d, want %v since %d", i, step.action, b.State, b.Since, step.want, step.since)
		}
	}
}

// An operator's action prevails; sources and health end only their own.
func TestOperatorsWordStands(t *testing.T) {
	type step struct {
		action  Action
		by      Author
		changed bool
		state   BackendState
		reason  string // after the step; its own if it has a number
	}
	for name, steps := range map[string][]step{
		"taken over from health": {
			{MarkDown, ByHealth, true, Down, "0"}, {MarkDown, ByHealth, false, Down, "0"}, {MarkDown, ByOperator, true, Down, "2"},
			{MarkUp, ByHealth, false, Down, "2"}, {MarkDown, ByOperator, false, Down, "2"}, {MarkDown, ByHealth, false, Down, "2"},
			{MarkUp, ByOperator, true, Active, "6"},
		},
		"ended by who began": {
			{MarkDown, ByHealth, true, Down, "0"}, {MarkUp, ByHealth, true, Active, "1"}, {Drain, BySource, true, Draining, "2"},
			{Resume, BySource, true, Active, "3"}, {MarkDown, ByHealth, true, Down, "4"}, {MarkUp, ByOperator, true, Active, "5"},
		},
		"an operator's drain": {
			{Drain, ByOperator, true, Draining, "0"}, {Drain, BySource, false, Draining, "0"}, {Resume, BySource, false, Draining, "0"},
			{MarkDown, ByHealth, true, Down, "3"}, {Resume, BySource, false, Down, "3"}, {MarkUp, ByHealth, true, Draining, "5"},
			{Resume, ByOperator, true, Active, "6"},
		},
		"a source's drain taken over": {
			{Drain, BySource, true, Draining, "0"}, {Drain, ByOperator, true, Draining, "1"}, {Resume, BySource, false, Draining, "1"},
			{Resume, ByOperator, true, Active, "3"},
		},
		"drained by a source, down, and named again": {
			{Drain, BySource, true, Draining, "0"}, {MarkDown, ByHealth, true, Down, "1"}, {Resume, BySource, true, Down, "1"},
			{MarkUp, ByHealth, true, Active, "3"},
		},
		"taken over while it is down": {
			{Drain, BySource, true, Draining, "0"}, {MarkDown, ByHealth, true, Down, "1"}, {Drain, ByOperator, true, Down, "1"},
			{Resume, BySource, false, Down, "1"}, {MarkUp, ByHealth, true, Draining, "4"},
		},
	} {
		m := newMachine()
		must(t, m, 1, add("a"))
		for i, s := range steps {
			before, _ := m.state().Backend("a")
			o := m.run(uint64(i+2), SetBackendState{Names: []string{"a"}, Action: s.action, By: s.by, Reason: fmt.Sprint(i)})
			var err error
			if m, err = restoreMachine(m.snapshot()); err != nil {
				t.Fatal(err)
			}
			a, _ := m.state().Backend("a")
			if o.Refuse != nil || o.Result.Changed != s.changed || a.State != s.state || a.Reason != s.reason {
				t.Errorf("%s: step %d, %v by %v: %+v, %+v", name, i, s.action, s.by, o, a)
			}
			if (a.Since != before.Since) != (a.State != before.State) || (a.Version != before.Version) != s.changed {
				t.Errorf("%s: step %d, %v by %v: %+v after %+v", name, i, s.action, s.by, a, before)
			}
		}
	}
}

// A verdict on an older Version changes nothing.
func TestStateOfAVersion(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a", "b"))
	must(t, m, 2, UpdateBackend{Name: "a", URL: ptr("http://elsewhere.test:1")})
	down := SetBackendState{Names: []string{"a", "b"}, Action: MarkDown, By: ByHealth, IfVersions: []uint64{1, 1}}
	if o := m.run(3, down); o.Refuse != nil || !o.Result.Changed {
		t.Fatalf("%+v", o)
	}
	if a, _ := m.state().Backend("a"); a.State != Active || a.Version != 2 {
		t.Errorf("%+v: another engine than the one that failed", a)
	}
	if b, _ := m.state().Backend("b"); b.State != Down || b.Version != 3 {
		t.Errorf("%+v", b)
	}
	if o := m.run(4, down); o.Refuse != nil || o.Result.Changed {
		t.Errorf("%+v", o)
	}
}

// A repeated command takes effect once.
func TestRepeatedRequest(t *testing.T) {
	m := newMachine()
	first := entry{request: requestID{1}, at: 5, command: add("a")}
	o := m.apply(1, first)
	must(t, m, 2, RemoveBackends{[]string{"a"}})
	m, err := restoreMachine(m.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	if again := m.apply(3, first); again != o {
		t.Errorf("outcome is %+v, was %+v", again, o)
	}
	if _, found := m.find("a"); found || m.version != 2 {
		t.Error("a repeated command took effect again")
	}
	for i := range uint64(maxOutcomes) {
		m.run(10+i, SetSwitches{Switches{Hot: true}})
	}
	if len(m.outcomes) != maxOutcomes || len(m.order) != maxOutcomes {
		t.Errorf("%d outcomes are remembered", len(m.outcomes))
	}
	if again := m.apply(1<<40, first); again == o {
		t.Error("outcomes are remembered for ever")
	}
}

func randomCommand(r *rand.Rand) Command {
	name := func() string { return fmt.Sprintf("b%d", r.IntN(8)) }
	switch r.IntN(9) {
	case 0, 1:
		c := add(name())
		if r.IntN(4) == 0 {
			c.Backends = append(c.Backends, backend(name()))
		}
		return c
	case 2:
		return UpdateBackend{Name: name(), Weight: ptr(float64(1 + r.IntN(3))), Models: ptr([]string{name()}), URL: ptr("http://" + name() + ".test:8000")}
	case 3:
		c := SetBackendState{Names: []string{name()}, Action: Action(r.IntN(4)), Reason: "r", By: Author(r.IntN(3))}
		if r.IntN(4) == 0 {
			c.IfVersions = []uint64{r.Uint64N(2000)}
		}
		return c
	case 4:
		return NewGeneration{Name: name()}
	case 5:
		return RemoveBackends{[]string{name()}}
	case 6:
		return SetRules{Text: name()}
	case 7:
		return SetHot{[]HotChange{{Anchor: uint64(r.IntN(6)), Remove: r.IntN(2) == 0, R: uint16(1 + r.IntN(3)), Depth: 512, Expires: int64(1 + r.IntN(5))}}}
	}
	return SetSwitches{Switches{Hot: r.IntN(2) == 0}}
}

// Machines with the same log have equal snapshots.
func TestDeterminism(t *testing.T) {
	r := seeded(t)
	var log [][]byte
	for i := range 2000 {
		e := entry{at: int64(i), command: randomCommand(r)}
		binary.BigEndian.PutUint64(e.request[:], r.Uint64N(1900)) // some twice
		log = append(log, e.encode())
	}
	a, b := newMachine(), newMachine()
	for i, raw := range log {
		for _, m := range []**machine{&a, &b} {
			e, err := decodeEntry(raw)
			if err != nil {
				t.Fatal(err)
			}
			(*m).apply(uint64(i+1), e)
		}
		if i%371 == 0 {
			var err error
			if b, err = restoreMachine(b.snapshot()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(a.snapshot(), b.snapshot()) {
		t.Error("the same log gives two snapshots")
	}
}

type modelBackend struct {
	url                 string
	drained, down       bool
	drainedBy, downedBy Author
}

func TestMachineAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, model := newMachine(), make(map[string]modelBackend)
		index := uint64(0)
		newest := make(map[string]uint32) // highest generation per name
		retired := make(map[string]bool)  // removed names
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		apply := func(c Command, allowed bool) {
			index++
			o := m.run(index, c)
			if (o.Refuse == nil) != allowed {
				t.Fatalf("%+v: refusal is %v, model allows it: %v", c, o.Refuse, allowed)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				list := rapid.SliceOfN(name, 1, 3).Draw(t, "names")
				fine := true
				seen := make(map[string]bool)
				for _, n := range list {
					_, exists := model[n]
					for _, b := range model {
						exists = exists || b.url == backend(n).URL
					}
					fine = fine && !exists && !seen[n]
					seen[n] = true
				}
				apply(add(list...), fine)
				for _, n := range list {
					if fine {
						model[n] = modelBackend{url: backend(n).URL}
					}
				}
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				_, exists := model[n]
				apply(RemoveBackends{[]string{n}}, exists)
				delete(model, n)
				retired[n] = true
			},
			"state": func(t *rapid.T) {
				n, a := name.Draw(t, "name"), Action(rapid.IntRange(0, 3).Draw(t, "action"))
				b, exists := model[n]
				by := Author(rapid.IntRange(0, 2).Draw(t, "by"))
				apply(SetBackendState{Names: []string{n}, Action: a, By: by}, exists)
				if !exists {
					return
				}
				given, whose := &b.drained, &b.drainedBy
				if a == MarkDown || a == MarkUp {
					given, whose = &b.down, &b.downedBy
				}
				switch begins := a == Drain || a == MarkDown; {
				case begins && (!*given || by == ByOperator):
					*given, *whose = true, by
				case !begins && *given && (by == ByOperator || by == *whose):
					*given, *whose = false, ByOperator
				}
				model[n] = b
			},
			"generation": func(t *rapid.T) {
				n := name.Draw(t, "name")
				_, exists := model[n]
				apply(NewGeneration{Name: n}, exists)
			},
			"move": func(t *rapid.T) {
				n, to := name.Draw(t, "name"), backend(name.Draw(t, "to")).URL
				b, exists := model[n]
				taken := false
				for other, o := range model {
					taken = taken || other != n && o.url == to
				}
				apply(UpdateBackend{Name: n, URL: &to}, exists && !taken)
				if exists && !taken {
					b.url = to
					model[n] = b
				}
			},
			"": func(t *rapid.T) {
				st := m.state()
				if len(st.Backends) != len(model) {
					t.Fatalf("%d backends, the model has %d", len(st.Backends), len(model))
				}
				if !slices.IsSortedFunc(st.Backends, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) }) {
					t.Fatal("backends are not sorted")
				}
				for _, b := range st.Backends {
					want := model[b.Name]
					if b.URL != want.url || b.Drained != want.drained || (b.State == Down) != want.down ||
						b.DrainedBy != want.drainedBy || b.DownBy != want.downedBy || !want.down && (b.State == Draining) != want.drained {
						t.Fatalf("backend is %+v, the model has %+v", b, want)
					}
					if was := newest[b.Name]; b.Generation < was || retired[b.Name] && b.Generation == was {
						t.Fatalf("%s has generation %d, had %d before it was removed", b.Name, b.Generation, was)
					}
					newest[b.Name] = b.Generation
					delete(retired, b.Name)
				}
			},
		})
	})
}

func TestStateIsImmutable(t *testing.T) {
	m := newMachine()
	must(t, m, 1, add("a", "b"))
	must(t, m, 2, SetHot{[]HotChange{{Anchor: 1, R: 1, Expires: 9}}})
	st := m.state()
	before := fmt.Sprintf("%+v", st)
	must(t, m, 3, UpdateBackend{Name: "a", Models: ptr([]string{"other"}), Weight: ptr(5.0)})
	must(t, m, 4, SetBackendState{Names: []string{"b"}, Action: MarkDown})
	must(t, m, 5, SetHot{[]HotChange{{Anchor: 1, R: 9, Expires: 10}, {Anchor: 0, R: 1, Expires: 1}}})
	must(t, m, 6, RemoveBackends{[]string{"a"}})
	if after := fmt.Sprintf("%+v", st); after != before {
		t.Errorf("state was\n%s\nand is\n%s", before, after)
	}
}

// Only another node's snapshot heals a stopped machine.
func TestUnknownEntryHaltsTheMachine(t *testing.T) {
	var published *State
	var halted string
	f := newFSM(func(s *State) { published = s }, func(why string) { halted = why })
	at := func(index uint64, c Command) *raft.Log {
		return &raft.Log{Index: index, Type: raft.LogCommand, Data: entry{request: requestID{byte(index)}, command: c}.encode()}
	}
	f.Apply(at(1, add("a")))
	newer := at(2, add("b"))
	newer.Data[0] = newestFormat + 1
	if err, ok := f.Apply(newer).(error); !ok || !errors.Is(err, errUnknownCommand) || halted == "" {
		t.Fatalf("answer is %v, halted %v", err, halted)
	}
	if _, ok := f.Apply(at(3, add("c"))).(error); !ok {
		t.Error("a halted machine goes on")
	}
	if len(published.Backends) != 1 || published.Version != 1 {
		t.Errorf("published %+v", published)
	}
	if _, err := f.Snapshot(); err == nil {
		t.Error("a halted machine gives a snapshot")
	}
	m := newMachine()
	must(t, m, 5, add("a", "b", "c"))
	if err := f.Restore(readCloser(m.snapshot())); err != nil {
		t.Fatal(err)
	}
	if halted != "" || f.stopped() != nil || len(published.Backends) != 3 {
		t.Error("a snapshot does not heal the machine")
	}
}

func TestNormalURL(t *testing.T) {
	for raw, want := range map[string]string{
		"HTTP://Host.Test:80/": "http://host.test", "https://h:443/a/b/": "https://h/a/b", "http://h:8000": "http://h:8000",
		"http://[::1]:80": "http://[::1]", "http://h:": "http://h", "https://h:80": "https://h:80",
		"http://H:80/#rank=07": "http://h#rank=7", "http://h/b#rank=1023": "http://h/b#rank=1023",
	} {
		if got, err := NormalURL(raw); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", raw, got, err, want)
		}
		if again, err := NormalURL(want); err != nil || again != want {
			t.Errorf("%s is not its own normal form but %q, %v", want, again, err)
		}
	}
	for _, raw := range []string{"", "h:80", "ftp://h", "http://", "http://u:p@h", "http://h/?q", "http://h/#f", "http://h#rank=", "http://h#rank=-1", "http://h#rank=1024", "http://h#ranks=2", "http://h:x", "http://" + strings.Repeat("h", 600)} {
		if got, err := NormalURL(raw); err == nil {
			t.Errorf("%q is accepted as %q", raw, got)
		}
	}
}

func TestValidate(t *testing.T) {
	bad := func(edit func(*Backend)) Command {
		c := add("good", "bad")
		edit(&c.Backends[1])
		return c
	}
	for _, c := range []struct {
		command Command
		text    string
	}{
		{AddBackends{}, "none given"},
		{bad(func(b *Backend) { b.Name = "" }), "backends[1]: name"},
		{bad(func(b *Backend) { b.Name = "a b" }), `byte 1 is ' '`},
		{bad(func(b *Backend) { b.URL = "nonsense" }), "backends[1]: url of bad"},
		{bad(func(b *Backend) { b.Weight = math.NaN() }), "weight of bad"},
		{bad(func(b *Backend) { b.Weight = -1 }), "weight of bad"},
		{bad(func(b *Backend) { b.KVTokens = -1 }), "kv_tokens of bad"},
		{bad(func(b *Backend) { b.Models = []string{"m", ""} }), "models of bad: [1]"},
		{bad(func(b *Backend) { b.Source = 9 }), "source"},
		{SetBackendState{Names: []string{"a", "a"}}, "names[1]: a is given twice"},
		{SetBackendState{Names: []string{"a"}, Action: 9}, "action"},
		{SetBackendState{Names: []string{"a"}, By: 9}, "by"},
		{SetBackendState{Names: []string{"a"}, Action: MarkDown, By: BySource}, "by: source does not down"},
		{SetBackendState{Names: []string{"a"}, Action: Resume, By: ByHealth}, "by: health does not resume"},
		{SetBackendState{Names: []string{"a"}, IfVersions: []uint64{1, 2}}, "if_versions: 2 given for 1"},
		{RemoveBackends{}, "none given"},
		{SetRules{Text: strings.Repeat("x", MaxRulesBytes+1)}, "rules"},
		{SetHot{[]HotChange{{Anchor: 1, R: 1, Expires: 1}, {Anchor: 1, Remove: true}}}, "hot[1]"},
		{SetHot{[]HotChange{{Anchor: 1, Expires: 1}}}, "r of anchor"},
		{SetConstants{}, "block_bytes is 0"},
		{UpdateBackend{Name: "a", Weight: ptr(0.0)}, "weight of a"},
	} {
		if err := c.command.validate(); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: error is %v, want %q in it", c.command, err, c.text)
		}
	}
}

func TestLabels(t *testing.T) {
	for text, want := range map[string]string{
		"zone": "is not NAME=VALUE", "=a": "is not NAME=VALUE", "zone=": "is not NAME=VALUE", "zone=a=b": "is not NAME=VALUE",
		"zone=a b": "visible ASCII", "zone=a,b": "without commas", "zone=a|b": "separates labels", "zone=a zone=b": "zone is given twice",
		"zone=" + strings.Repeat("x", MaxLabelBytes):    "bytes, at most 128",
		strings.Repeat("zone=a ", MaxLabels) + "tier=b": "17 given, at most 16",
	} {
		labels := strings.Split(text, " ")
		if text == "zone=a b" {
			labels = []string{text}
		}
		if err := (UpdateBackend{Name: "n", Labels: &labels}).validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	got := normalCommand(UpdateBackend{Name: "n", Labels: ptr([]string{"zone=a", "tier=spot"})}).(UpdateBackend)
	if err := got.validate(); err != nil || !slices.Equal(*got.Labels, []string{"tier=spot", "zone=a"}) {
		t.Errorf("labels become %v, %v", *got.Labels, err)
	}
}
