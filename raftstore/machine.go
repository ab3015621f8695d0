package raftstore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxOutcomes exceeds what a disk writes before a node gives up a call.
const maxOutcomes = 8192

// machine is deterministic: no clock, no randomness, no map order.
type machine struct {
	version   uint64
	constants Constants
	backends  []Backend // sorted by name
	urls      map[string]string
	// retired is the highest removed generation; new backends start above it.
	retired  uint32
	rules    Rules
	hot      []HotPrefix // sorted by anchor
	switches Switches

	outcomes map[requestID]outcome
	order    []requestID // oldest at head
	head     int
}

type outcome struct {
	Result Result
	Refuse *refusal
}

func newMachine() *machine {
	return &machine{
		urls:     make(map[string]string),
		switches: Switches{Hot: true},
		outcomes: make(map[requestID]outcome),
	}
}

// apply returns the earlier outcome of a repeated request.
func (m *machine) apply(index uint64, e entry) outcome {
	if o, ok := m.outcomes[e.request]; ok {
		return o
	}
	changed, refused := m.execute(index, e)
	o := outcome{Result{Index: index, Changed: changed}, refused}
	if changed {
		m.version = index
	}
	m.remember(e.request, o)
	return o
}

func (m *machine) remember(id requestID, o outcome) {
	if len(m.order) < maxOutcomes {
		m.order = append(m.order, id)
	} else {
		delete(m.outcomes, m.order[m.head])
		m.order[m.head] = id
		m.head = (m.head + 1) % maxOutcomes
	}
	m.outcomes[id] = o
}

func (m *machine) execute(index uint64, e entry) (changed bool, refused *refusal) {
	switch c := e.command.(type) {
	case AddBackends:
		return m.addBackends(index, e.at, c)
	case UpdateBackend:
		return m.updateBackend(index, c)
	case SetBackendState:
		return m.setBackendState(index, e.at, c)
	case NewGeneration:
		return m.newGeneration(index, c)
	case RemoveBackends:
		return m.removeBackends(c)
	case SetRules:
		return m.setRules(index, c)
	case SetHot:
		return m.setHot(e.at, c)
	case SetSwitches:
		changed = m.switches != c.Switches
		m.switches = c.Switches
		return changed, nil
	case SetConstants:
		return m.setConstants(c)
	}
	panic(fmt.Sprintf("raftstore: command %T has no implementation", e.command))
}

func (m *machine) find(name string) (int, bool) { return findBackend(m.backends, name) }

func (m *machine) addBackends(index uint64, at int64, c AddBackends) (bool, *refusal) {
	if len(m.backends)+len(c.Backends) > MaxBackends {
		return false, refuse(refusedTooMany, "%d backends and %d more are above the limit of %d",
			len(m.backends), len(c.Backends), MaxBackends)
	}
	names := make(map[string]bool, len(c.Backends))
	urls := make(map[string]string, len(c.Backends))
	for _, b := range c.Backends {
		if _, found := m.find(b.Name); found {
			return false, refuse(refusedExists, "backend %s exists already", b.Name)
		}
		if names[b.Name] {
			return false, refuse(refusedExists, "backend %s is given twice", b.Name)
		}
		if owner, found := m.urls[b.URL]; found {
			return false, refuse(refusedExists, "url %s of backend %s is backend %s already", b.URL, b.Name, owner)
		}
		if owner, found := urls[b.URL]; found {
			return false, refuse(refusedExists, "url %s is given for %s and for %s", b.URL, owner, b.Name)
		}
		if refused := b.misfit(); refused != nil {
			return false, refused
		}
		names[b.Name], urls[b.URL] = true, b.Name
	}
	for _, b := range c.Backends {
		m.backends = append(m.backends, Backend{
			Name: b.Name, URL: b.URL, Models: b.Models, Weight: cmp.Or(b.Weight, 1), KVTokens: b.KVTokens, Role: b.Role, BootstrapPort: b.BootstrapPort,
			Labels: b.Labels, Source: b.Source, Generation: m.retired + 1, Since: at, Version: index,
		})
		m.urls[b.URL] = b.Name
	}
	slices.SortFunc(m.backends, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) })
	return len(c.Backends) > 0, nil
}

func (m *machine) updateBackend(index uint64, c UpdateBackend) (bool, *refusal) {
	i, found := m.find(c.Name)
	if !found {
		return false, refuse(refusedNotFound, "backend %s does not exist", c.Name)
	}
	b := m.backends[i]
	if c.IfVersion != nil && *c.IfVersion != b.Version {
		return false, refuse(refusedConflict, "backend %s has version %d, not %d", c.Name, b.Version, *c.IfVersion)
	}
	old := b
	if c.URL != nil && *c.URL != b.URL {
		if owner, taken := m.urls[*c.URL]; taken {
			return false, refuse(refusedExists, "url %s of backend %s is backend %s already", *c.URL, c.Name, owner)
		}
		b.URL = *c.URL
		b.Generation++
	}
	set(&b.Weight, c.Weight)
	set(&b.KVTokens, c.KVTokens)
	set(&b.Role, c.Role)
	set(&b.BootstrapPort, c.BootstrapPort)
	set(&b.Labels, c.Labels)
	set(&b.Source, c.Source)
	set(&b.Models, c.Models)
	if refused := b.misfit(); refused != nil {
		return false, refused
	}
	if sameBackend(b, old) {
		return false, nil
	}
	delete(m.urls, old.URL)
	m.urls[b.URL] = b.Name
	b.Version = index
	m.backends[i] = b
	return true, nil
}

func (b *Backend) misfit() *refusal {
	if b.Role == Both && b.BootstrapPort != 0 {
		return refuse(refusedInvalid, "backend %s has bootstrap_port %d and role both: give it the role prefill or decode, or no bootstrap_port", b.Name, b.BootstrapPort)
	}
	return nil
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func sameBackend(a, b Backend) bool {
	return a.URL == b.URL && a.Weight == b.Weight &&
		a.KVTokens == b.KVTokens && a.Role == b.Role && a.BootstrapPort == b.BootstrapPort && a.Source == b.Source &&
		slices.Equal(a.Models, b.Models) && slices.Equal(a.Labels, b.Labels)
}

func (m *machine) setBackendState(index uint64, at int64, c SetBackendState) (bool, *refusal) {
	if n := len(c.IfVersions); n > 0 && n != len(c.Names) {
		return false, refuse(refusedInvalid, "%d versions of %d backends", n, len(c.Names))
	}
	places := make([]int, len(c.Names))
	for n, name := range c.Names {
		i, found := m.find(name)
		if !found {
			return false, refuse(refusedNotFound, "backend %s does not exist", name)
		}
		places[n] = i
	}
	changed := false
	for n, i := range places {
		b := &m.backends[i]
		if len(c.IfVersions) > 0 && c.IfVersions[n] != b.Version || !b.act(at, &c) {
			continue
		}
		b.Version = index
		changed = true
	}
	return changed, nil
}

func (b *Backend) act(at int64, c *SetBackendState) bool {
	was, wasDrained, wasDown := b.State, word{b.Drained, b.DrainedBy}, word{b.State == Down, b.DownBy}
	drained, down := wasDrained, wasDown
	switch c.Action {
	case Drain:
		drained.begin(c.By)
	case Resume:
		drained.end(c.By)
	case MarkDown:
		down.begin(c.By)
	case MarkUp:
		down.end(c.By)
	}
	if drained == wasDrained && down == wasDown {
		return false
	}
	b.Drained, b.DrainedBy, b.DownBy, b.State = drained.given, drained.by, down.by, Active
	shown, wasShown := word{}, word{} // what State shows
	switch {
	case down.given:
		b.State, shown, wasShown = Down, down, wasDown
	case drained.given:
		b.State, shown, wasShown = Draining, drained, wasDrained
	}
	if b.State != was {
		b.Since, b.Reason = at, c.Reason
	} else if shown != wasShown {
		b.Reason = c.Reason // another author took over
	}
	return true
}

// word is a drain or a failure, with its author.
type word struct {
	given bool
	by    Author
}

func (w *word) begin(by Author) {
	if !w.given || by == ByOperator {
		*w = word{true, by}
	}
}

func (w *word) end(by Author) {
	if by == ByOperator || by == w.by {
		*w = word{}
	}
}

func (m *machine) newGeneration(index uint64, c NewGeneration) (bool, *refusal) {
	i, found := m.find(c.Name)
	if !found {
		return false, refuse(refusedNotFound, "backend %s does not exist", c.Name)
	}
	b := &m.backends[i]
	if c.From != 0 && c.From != b.Generation {
		return false, refuse(refusedConflict, "backend %s has generation %d, not %d", c.Name, b.Generation, c.From)
	}
	b.Generation++
	b.Version = index
	return true, nil
}

func (m *machine) removeBackends(c RemoveBackends) (bool, *refusal) {
	gone := make(map[string]bool, len(c.Names))
	for _, name := range c.Names {
		if _, found := m.find(name); !found {
			return false, refuse(refusedNotFound, "backend %s does not exist", name)
		}
		gone[name] = true
	}
	m.backends = slices.DeleteFunc(m.backends, func(b Backend) bool {
		if !gone[b.Name] {
			return false
		}
		m.retired = max(m.retired, b.Generation)
		delete(m.urls, b.URL)
		return true
	})
	return len(gone) > 0, nil
}

func (m *machine) setRules(index uint64, c SetRules) (bool, *refusal) {
	if c.IfVersion != nil && *c.IfVersion != m.rules.Version {
		return false, refuse(refusedConflict, "the rules have version %d, not %d", m.rules.Version, *c.IfVersion)
	}
	if m.rules.Version != 0 && m.rules.Text == c.Text && m.rules.Targets == c.Targets {
		return false, nil
	}
	m.rules = Rules{Text: c.Text, Version: index, Targets: c.Targets}
	return true, nil
}

func (m *machine) setHot(at int64, c SetHot) (bool, *refusal) {
	hot := slices.Clone(m.hot)
	changed := false
	for _, h := range c.Changes {
		i, found := slices.BinarySearchFunc(hot, h.Anchor, func(p HotPrefix, a uint64) int { return cmp.Compare(p.Anchor, a) })
		switch {
		case h.Remove && !found:
		case h.Remove:
			hot = slices.Delete(hot, i, i+1)
			changed = true
		case !found:
			hot = slices.Insert(hot, i, HotPrefix{
				Anchor: h.Anchor, Depth: h.Depth, R: h.R, Expires: h.Expires, Since: at, LastChange: at,
			})
			changed = true
		default:
			p := hot[i]
			if p.R != h.R {
				p.LastChange = at
			}
			p.Depth, p.R, p.Expires = h.Depth, h.R, h.Expires
			changed = changed || p != hot[i]
			hot[i] = p
		}
	}
	if len(hot) > MaxHot {
		return false, refuse(refusedTooMany, "%d hot prefixes are above the limit of %d", len(hot), MaxHot)
	}
	m.hot = hot
	return changed, nil
}

func (m *machine) setConstants(c SetConstants) (bool, *refusal) {
	switch {
	case m.constants == Constants{}:
		m.constants = c.Constants
		return true, nil
	case m.constants != c.Constants:
		return false, refuse(refusedConflict, "%v", mismatch(m.constants, c.Constants))
	}
	return false, nil
}

func mismatch(fleet, node Constants) error {
	if fleet == node {
		return nil
	}
	return fmt.Errorf("the constants differ: the fleet has %v, this node has %v", fleet, node)
}

// state shares only lists of models and labels, which never change.
func (m *machine) state() *State {
	return &State{
		Version: m.version, Constants: m.constants, Backends: slices.Clone(m.backends), Rules: m.rules,
		Hot: slices.Clone(m.hot), Switches: m.switches,
	}
}
