package raftstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"grapevine.example/chaos/virtual"
)

type naive struct {
	version   uint64
	constants Constants
	backends  map[string]*Backend
	retired   uint32
	rules     Rules
	hot       map[uint64]HotPrefix
	switches  Switches
	outcomes  map[requestID]naiveOutcome
}

type naiveOutcome struct {
	index   uint64
	refuse  error
	changed bool
}

func newNaive() *naive {
	return &naive{
		backends: map[string]*Backend{}, hot: map[uint64]HotPrefix{},
		switches: Switches{Hot: true}, outcomes: map[requestID]naiveOutcome{},
	}
}

func (m *naive) apply(index uint64, e entry) naiveOutcome {
	if o, again := m.outcomes[e.request]; again {
		return o
	}
	changed, err := m.execute(index, e)
	o := naiveOutcome{index, err, changed}
	if changed {
		m.version = index
	}
	m.outcomes[e.request] = o
	return o
}

func (m *naive) execute(index uint64, e entry) (changed bool, err error) {
	switch c := e.command.(type) {
	case AddBackends:
		return m.add(index, e.at, c)
	case UpdateBackend:
		return m.update(index, c)
	case SetBackendState:
		return m.set(index, e.at, c)
	case NewGeneration:
		b := m.backends[c.Name]
		switch {
		case b == nil:
			return false, ErrNotFound
		case c.From != 0 && c.From != b.Generation:
			return false, ErrConflict
		}
		b.Generation++
		b.Version = index
		return true, nil
	case RemoveBackends:
		for _, n := range c.Names {
			if m.backends[n] == nil {
				return false, ErrNotFound
			}
		}
		for _, n := range c.Names {
			m.retired = max(m.retired, m.backends[n].Generation)
			delete(m.backends, n)
		}
		return len(c.Names) > 0, nil
	case SetRules:
		switch {
		case c.IfVersion != nil && *c.IfVersion != m.rules.Version:
			return false, ErrConflict
		case m.rules.Version > 0 && m.rules.Text == c.Text && m.rules.Targets == c.Targets:
			return false, nil
		}
		m.rules = Rules{c.Text, index, c.Targets}
		return true, nil
	case SetHot:
		return m.heat(e.at, c), nil
	case SetSwitches:
		changed, m.switches = m.switches != c.Switches, c.Switches
		return changed, nil
	case SetConstants:
		if m.constants != (Constants{}) && m.constants != c.Constants {
			return false, ErrConflict
		}
		changed, m.constants = m.constants != c.Constants, c.Constants
		return changed, nil
	}
	return false, fmt.Errorf("no rule for %T", e.command)
}

func (m *naive) owner(url string) *Backend {
	for _, b := range m.backends {
		if b.URL == url {
			return b
		}
	}
	return nil
}

func (m *naive) add(index uint64, at int64, c AddBackends) (bool, error) {
	names, urls := map[string]bool{}, map[string]bool{}
	for _, b := range c.Backends {
		if m.backends[b.Name] != nil || m.owner(b.URL) != nil || names[b.Name] || urls[b.URL] {
			return false, ErrExists
		}
		names[b.Name], urls[b.URL] = true, true
	}
	for _, b := range c.Backends {
		m.backends[b.Name] = &Backend{
			Generation: m.retired + 1, Name: b.Name, URL: b.URL, Models: b.Models,
			Weight: cmp.Or(b.Weight, 1), KVTokens: b.KVTokens, Source: b.Source, Since: at, Version: index,
		}
	}
	return len(c.Backends) > 0, nil
}

func (m *naive) update(index uint64, c UpdateBackend) (bool, error) {
	b := m.backends[c.Name]
	switch {
	case b == nil:
		return false, ErrNotFound
	case c.IfVersion != nil && *c.IfVersion != b.Version:
		return false, ErrConflict
	case c.URL != nil && *c.URL != b.URL && m.owner(*c.URL) != nil:
		return false, ErrExists
	}
	was := *b
	if c.URL != nil && *c.URL != b.URL {
		b.URL = *c.URL
		b.Generation++
	}
	if c.Weight != nil {
		b.Weight = *c.Weight
	}
	if c.KVTokens != nil {
		b.KVTokens = *c.KVTokens
	}
	if c.Source != nil {
		b.Source = *c.Source
	}
	if c.Models != nil && !slices.Equal(*c.Models, b.Models) {
		b.Models = *c.Models
	}
	if reflect.DeepEqual(*b, was) {
		return false, nil
	}
	b.Version = index
	return true, nil
}

func (m *naive) set(index uint64, at int64, c SetBackendState) (changed bool, err error) {
	for _, n := range c.Names {
		if m.backends[n] == nil {
			return false, ErrNotFound
		}
	}
	for i, n := range c.Names {
		b := m.backends[n]
		if c.IfVersions != nil && c.IfVersions[i] != b.Version {
			continue
		}
		was := *b
		down := b.State == Down
		switch operator := c.By == ByOperator; c.Action {
		case Drain:
			if !b.Drained || operator {
				b.Drained, b.DrainedBy = true, c.By
			}
		case Resume:
			if operator || b.DrainedBy == c.By {
				b.Drained, b.DrainedBy = false, ByOperator
			}
		case MarkDown:
			if !down || operator {
				down, b.DownBy = true, c.By
			}
		case MarkUp:
			if operator || b.DownBy == c.By {
				down, b.DownBy = false, ByOperator
			}
		}
		switch {
		case down:
			b.State = Down
		case b.Drained:
			b.State = Draining
		default:
			b.State = Active
		}
		switch {
		case b.State != was.State:
			b.Since, b.Reason = at, c.Reason
		case b.State == Down && b.DownBy != was.DownBy, b.State == Draining && b.DrainedBy != was.DrainedBy:
			b.Reason = c.Reason
		}
		if b.State != was.State || b.Drained != was.Drained || b.DrainedBy != was.DrainedBy || b.DownBy != was.DownBy {
			b.Version, changed = index, true
		}
	}
	return changed, nil
}

func (m *naive) heat(at int64, c SetHot) (changed bool) {
	for _, h := range c.Changes {
		was, is := m.hot[h.Anchor]
		if h.Remove {
			delete(m.hot, h.Anchor)
			changed = changed || is
			continue
		}
		p := HotPrefix{Anchor: h.Anchor, Depth: h.Depth, R: h.R, Expires: h.Expires, Since: at, LastChange: at}
		if is {
			p.Since, p.LastChange = was.Since, was.LastChange
			if was.R != h.R {
				p.LastChange = at
			}
		}
		m.hot[h.Anchor] = p
		changed = changed || p != was
	}
	return changed
}

func (m *naive) state() *State {
	st := &State{Version: m.version, Constants: m.constants, Rules: m.rules, Switches: m.switches}
	for _, n := range slices.Sorted(maps.Keys(m.backends)) {
		st.Backends = append(st.Backends, *m.backends[n])
	}
	for _, a := range slices.Sorted(maps.Keys(m.hot)) {
		st.Hot = append(st.Hot, m.hot[a])
	}
	return st
}

func anyCommand(r *rand.Rand, st *State, kind int) Command {
	name := func() string { return fmt.Sprintf("b%d", r.IntN(9)) }
	names := func() (list []string) {
		for range 1 + r.IntN(2)*r.IntN(3) {
			if n := name(); !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
		return list
	}
	version := func(now uint64) *uint64 {
		switch r.IntN(4) {
		case 0:
			return ptr(now)
		case 1:
			return ptr(now + uint64(r.IntN(2)))
		}
		return nil
	}
	switch kind {
	case 0:
		var c AddBackends
		for range 1 + r.IntN(3) {
			b := backend(name())
			if r.IntN(4) == 0 {
				b.URL = backend(name()).URL
			}
			b.Weight, b.KVTokens = float64(r.IntN(3)), r.Int64N(3)
			c.Backends = append(c.Backends, b)
		}
		return c
	case 1:
		n := name()
		b, _ := st.Backend(n)
		c := UpdateBackend{Name: n, IfVersion: version(b.Version)}
		if r.IntN(2) == 0 {
			c.URL = ptr(backend(name()).URL)
		}
		if r.IntN(2) == 0 {
			c.Models = ptr([]string{name()})
		}
		if r.IntN(2) == 0 {
			c.Weight, c.Source = ptr(float64(1+r.IntN(2))), ptr(Source(r.IntN(4)))
		}
		if r.IntN(4) == 0 {
			c.KVTokens = ptr(r.Int64N(3))
		}
		return c
	case 2:
		c := SetBackendState{
			Names: names(), Action: Action(r.IntN(4)), By: Author(r.IntN(3)), Reason: []string{"refused", "timeout", "the rack is moved", ""}[r.IntN(4)],
		}
		if r.IntN(3) == 0 {
			for _, n := range c.Names {
				b, _ := st.Backend(n)
				c.IfVersions = append(c.IfVersions, b.Version+uint64(r.IntN(4)/3))
			}
		}
		return c
	case 3:
		n := name()
		b, _ := st.Backend(n)
		return NewGeneration{Name: n, From: uint32(r.IntN(2)) * (b.Generation + uint32(r.IntN(2)))}
	case 4:
		return RemoveBackends{names()}
	case 5:
		return SetRules{Text: name(), IfVersion: version(st.Rules.Version), Targets: r.IntN(2) == 0}
	case 6:
		var c SetHot
		for a := range uint64(1 + r.IntN(3)) {
			c.Changes = append(c.Changes, HotChange{
				Anchor: a*7 + uint64(r.IntN(6)), Remove: r.IntN(3) == 0, R: uint16(1 + r.IntN(3)), Depth: uint32(r.IntN(2) * 512), Expires: 1 + r.Int64N(4),
			})
		}
		return c
	case 7:
		return SetSwitches{Switches{Hot: r.IntN(2) == 0}}
	}
	return SetConstants{Constants{KeyID: 1, BlockBytes: 64 << r.IntN(2), Cluster: "one"}}
}

// replica is a machine that the test drives like raft.
type replica struct {
	fsm       *fsm
	published *State
	halted    string
	newest    uint64
}

func newReplica(t *testing.T) *replica {
	p := &replica{}
	p.fsm = newFSM(func(st *State) {
		if st.Version < p.newest {
			t.Errorf("published version %d after %d", st.Version, p.newest)
		}
		p.published, p.newest = st, st.Version
	}, func(why string) { p.halted = why })
	return p
}

func (p *replica) snapshot(t *testing.T) []byte {
	t.Helper()
	s, err := p.fsm.Snapshot()
	if err != nil {
		if p.halted == "" {
			t.Fatal(err)
		}
		return nil
	}
	return s.(encodedSnapshot)
}

type machines struct {
	t        *testing.T
	r        *rand.Rand
	index    uint64
	naive    *naive
	replicas []*replica
	log      []*raft.Log
	applied  []int // per replica
}

// propose sometimes repeats an earlier request id.
func (m *machines) propose(c Command) {
	m.index += 1 + uint64(m.r.IntN(2)) // raft adds its own entries between
	e := entry{at: int64(m.index) * 10, command: c}
	binary.BigEndian.PutUint64(e.request[:], m.index)
	if len(m.log) > 0 && m.r.IntN(12) == 0 {
		old, err := decodeEntry(m.log[len(m.log)-1-m.r.IntN(min(len(m.log), 40))].Data)
		if err != nil {
			m.t.Fatal(err)
		}
		e.request = old.request
		if m.r.IntN(2) == 0 {
			e = old
		}
	}
	m.log = append(m.log, &raft.Log{Index: m.index, Type: raft.LogCommand, Data: e.encode()})
}

func (m *machines) advance(i, most int) {
	from := m.applied[i]
	to := min(len(m.log), from+1+m.r.IntN(most))
	answers := m.replicas[i].fsm.ApplyBatch(m.log[from:to])
	m.applied[i] = to
	if i != 0 {
		return
	}
	for n, l := range m.log[from:to] {
		e, err := decodeEntry(l.Data)
		if err != nil {
			m.t.Fatal(err)
		}
		want := m.naive.apply(l.Index, e)
		got := answers[n].(outcome)
		if got.Result != (Result{want.index, want.changed}) || (got.Refuse == nil) != (want.refuse == nil) || want.refuse != nil && !errors.Is(got.Refuse, want.refuse) {
			m.t.Fatalf("entry %d, %+v: %+v refused %v, by the model %+v", l.Index, e.command, got.Result, got.Refuse, want)
		}
	}
	if st := m.replicas[0].published; st != nil && m.r.IntN(8) == 0 {
		if want := m.naive.state(); fmt.Sprintf("%+v", st) != fmt.Sprintf("%+v", want) {
			m.t.Fatalf("the state is\n%+v\nby the model\n%+v", st, want)
		}
	}
}

// level applies the whole log everywhere and compares.
func (m *machines) level() {
	m.t.Helper()
	var first []byte
	for i, p := range m.replicas {
		for m.applied[i] < len(m.log) {
			m.advance(i, 20)
		}
		b := p.snapshot(m.t)
		if i == 0 {
			first = b
		} else if !bytes.Equal(b, first) {
			m.t.Fatalf("replica %d differs from the first at entry %d: halted %v\n%+v\n%+v", i, m.index, p.halted, p.published, m.replicas[0].published)
		}
	}
}

func (m *machines) install(to, from int) {
	if m.applied[from] < m.applied[to] {
		return
	}
	b := m.replicas[from].snapshot(m.t)
	if b == nil {
		return
	}
	p := m.replicas[to]
	if m.r.IntN(3) == 0 { // as another process
		newest := p.newest
		p = newReplica(m.t)
		p.newest = newest
		m.replicas[to] = p
	}
	if err := p.fsm.Restore(readCloser(b)); err != nil {
		m.t.Fatal(err)
	}
	m.applied[to] = m.applied[from]
	if p.halted != "" {
		m.t.Fatalf("a snapshot did not heal replica %d: %v", to, p.halted)
	}
}

// Replicas with different batches and snapshots match a naive model.
func TestSeedsMachine(t *testing.T) {
	virtual.Seeds(t, 25, 1, func(t *testing.T, seed uint64) {
		m := &machines{t: t, r: virtual.Rand(seed, 0), naive: newNaive()}
		for range 3 {
			m.replicas = append(m.replicas, newReplica(t))
		}
		m.applied = make([]int, len(m.replicas))
		kinds := virtual.NewSwarm(m.r, 9, 0)
		for step := range 400 {
			st := m.naive.state()
			m.propose(anyCommand(m.r, st, kinds.Next(m.r)))
			m.advance(0, 3)
			for i := 1; i < len(m.replicas); i++ {
				if m.r.IntN(3) == 0 && m.applied[i] < len(m.log) {
					m.advance(i, 30)
				}
			}
			switch m.r.IntN(40) {
			case 0:
				m.install(m.r.IntN(3), m.r.IntN(3))
			case 1:
				m.misread(1 + m.r.IntN(2))
			}
			if step%100 == 99 {
				m.level()
			}
		}
	})
}

// misread stops a replica until a snapshot heals it.
func (m *machines) misread(i int) {
	if m.applied[i] == len(m.log) {
		return
	}
	l := *m.log[m.applied[i]]
	l.Data = slices.Clone(l.Data)
	l.Data[0] = newestFormat + 1
	p := m.replicas[i]
	was := p.published
	if err, ok := p.fsm.Apply(&l).(error); !ok || !errors.Is(err, errUnknownCommand) || p.halted == "" {
		m.t.Fatalf("an unknown entry is answered by %v", err)
	}
	m.applied[i]++
	for m.applied[i] < len(m.log) {
		m.advance(i, 5)
	}
	if p.published != was || p.snapshot(m.t) != nil {
		m.t.Fatal("a machine that stands still goes on")
	}
	for m.applied[0] < len(m.log) {
		m.advance(0, 5)
	}
	m.install(i, 0)
}
