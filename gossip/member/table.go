package member

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxMembers bounds the table: what a mesh of streams could ever bear.
	maxMembers = 4096
	// forgetFailed is how long a failed member is remembered, and dialed, in
	// case it is on the other side of a partition; forgetLeft is how long one
	// that left is shown.
	forgetFailed = time.Hour
	forgetLeft   = 10 * time.Minute
	// nameReclaim is how long a dead node's name is barred to another address
	// by memberlist; nameRest by the hello, which is what a newcomer meets
	// first. The difference lets the news of the death reach all nodes: one that
	// has not had it would refuse the newcomer until the next exchange of state.
	nameReclaim = time.Second
	nameRest    = 3 * time.Second
)

// table holds what is known of the other nodes, and tells of changes in order.
// memberlist calls it under its own lock, so it never calls memberlist.
type table struct {
	self func() Info
	now  func() time.Time

	mu     sync.Mutex
	byName map[string]*member
	// dirty names the members that have changed since events were last taken,
	// each once, in the order of their first change.
	dirty  []string
	wake   chan struct{} // capacity 1
	closed bool
}

// member is one other node.
type member struct {
	card  card
	state State
	since time.Time

	dirty bool
	// told is what events have said last: nil if not alive.
	told *Info
}

func newTable(self func() Info) *table {
	return &table{self: self, now: time.Now, byName: make(map[string]*member), wake: make(chan struct{}, 1)}
}

// cardOf reads a node's metadata. The address is the one memberlist uses.
func cardOf(n *memberlist.Node) (card, error) {
	c, err := decodeCard(n.Meta)
	if err != nil {
		return card{}, err
	}
	if c.Name != n.Name {
		return card{}, fmt.Errorf("%w: %q in the metadata of %q", errInfo, c.Name, clean(n.Name, maxName))
	}
	addr, ok := netip.AddrFromSlice(n.Addr)
	if !ok || addr.IsUnspecified() || addr.IsMulticast() || n.Port == 0 {
		return card{}, fmt.Errorf("%w: address %s", errInfo, nodeAddr(n))
	}
	c.Addr = nodeAddr(n)
	return c, nil
}

func nodeAddr(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// admit reports why a node cannot be a member, or nil.
func (t *table) admit(n *memberlist.Node) (Info, error) {
	c, err := cardOf(n)
	if err != nil {
		return Info{Name: clean(n.Name, maxName), Addr: nodeAddr(n)}, err
	}
	if err := Compatible(t.self(), c.Info); err != nil {
		return c.Info, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byName[c.Name] == nil && len(t.byName) >= maxMembers && t.longestGoneLocked() == "" {
		return c.Info, fmt.Errorf("the fleet has %d members already", maxMembers)
	}
	return c.Info, nil
}

// longestGoneLocked names the member that has been gone longest, of those whose
// end has been told; "" if there is none.
func (t *table) longestGoneLocked() string {
	var oldest string
	for name, m := range t.byName {
		if m.state != StateAlive && !m.dirty && (oldest == "" || m.since.Before(t.byName[oldest].since)) {
			oldest = name
		}
	}
	return oldest
}

// alive notes that a node is there, or tells other things of itself.
func (t *table) alive(n *memberlist.Node) {
	c, err := cardOf(n)
	if err != nil || c.Name == t.self().Name {
		return // admit has refused the one; the other is this node
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[c.Name]
	if m == nil {
		if len(t.byName) >= maxMembers {
			delete(t.byName, t.longestGoneLocked())
		}
		m = &member{}
		t.byName[c.Name] = m
	}
	if m.state != StateAlive || m.card.Incarnation != c.Incarnation {
		m.state, m.since = StateAlive, t.now()
	}
	m.card = c
	t.touchLocked(m)
}

// gone notes that a node is dead, or has left if it had said that it would.
func (t *table) gone(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil || m.state != StateAlive {
		return
	}
	m.state, m.since = StateFailed, t.now()
	if m.card.leaving {
		m.state = StateLeft
	}
	t.touchLocked(m)
}

func (t *table) touchLocked(m *member) {
	if t.closed || m.dirty {
		return
	}
	m.dirty = true
	t.dirty = append(t.dirty, m.card.Name)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// events returns what has changed since it was last called. A member that went
// and came back as the same process in between has not changed; one that came
// back as another process has failed and joined.
func (t *table) events() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Event
	for _, name := range t.dirty {
		m := t.byName[name]
		if m == nil {
			continue
		}
		m.dirty = false
		if m.told != nil && (m.state != StateAlive || m.told.Incarnation != m.card.Incarnation) {
			kind := Failed
			if m.state == StateLeft {
				kind = Left
			}
			out = append(out, Event{Kind: kind, Member: *m.told})
			m.told = nil
		}
		if m.state != StateAlive || m.told != nil && *m.told == m.card.Info {
			continue
		}
		kind := Joined
		if m.told != nil {
			kind = Updated
		}
		info := m.card.Info
		m.told = &info
		out = append(out, Event{Kind: kind, Member: info})
	}
	t.dirty = t.dirty[:0]
	return out
}

// close ends the events.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.dirty = true, nil
}

// list returns all members by name, and forgets those gone for long.
func (t *table) list() []Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked()
	out := make([]Status, 0, len(t.byName))
	for _, m := range t.byName {
		out = append(out, Status{Info: m.card.Info, State: m.state, Since: m.since})
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (t *table) sweepLocked() {
	now := t.now()
	for name, m := range t.byName {
		age := now.Sub(m.since)
		if !m.dirty && (m.state == StateFailed && age > forgetFailed || m.state == StateLeft && age > forgetLeft) {
			delete(t.byName, name)
		}
	}
}

// get returns a member.
func (t *table) get(name string) (Status, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil {
		return Status{}, false
	}
	return Status{Info: m.card.Info, State: m.state, Since: m.since}, true
}

// census counts the members that are alive, and those that failed.
func (t *table) census() (alive, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.byName {
		switch m.state {
		case StateAlive:
			alive++
		case StateFailed:
			failed++
		}
	}
	return alive, failed
}

// addresses returns where members are alive, and the members that failed.
func (t *table) addresses() (alive map[string]bool, failed []Info) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked()
	alive = make(map[string]bool, len(t.byName))
	for _, m := range t.byName {
		switch m.state {
		case StateAlive:
			alive[m.card.Addr] = true
		case StateFailed:
			failed = append(failed, m.card.Info)
		}
	}
	return alive, failed
}

// holder returns the address of a node that has the name of info, is another
// one, and is alive or was until just now; else "".
func (t *table) holder(info *Info) string {
	if self := t.self(); info.Name == self.Name {
		if info.Addr == self.Addr && info.Incarnation == self.Incarnation {
			return ""
		}
		return self.Addr
	}
	m, ok := t.get(info.Name)
	if ok && m.Addr != info.Addr && t.lives(m.State, m.Since) {
		return m.Addr
	}
	return ""
}

// lives reports whether a member is alive, or failed so recently that others may not know it yet.
func (t *table) lives(state State, since time.Time) bool {
	return state == StateAlive || state == StateFailed && t.now().Sub(since) < nameRest
}

// raftIDHolder returns the name and address of another node that has the raft id of info, and is alive
// or was until just now; else "". A raft id stands in the data of its node, so one of the two runs on
// a copy.
func (t *table) raftIDHolder(info *Info) string {
	if info.RaftID == "" {
		return ""
	}
	if self := t.self(); info.RaftID == self.RaftID && info.Name != self.Name {
		return self.Name + " (" + self.Addr + ")"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, m := range t.byName {
		if m.card.RaftID == info.RaftID && name != info.Name && m.card.Addr != info.Addr && t.lives(m.state, m.since) {
			return name + " (" + m.card.Addr + ")"
		}
	}
	return ""
}
