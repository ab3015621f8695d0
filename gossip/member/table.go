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
	// maxMembers is the most a mesh of streams can bear.
	maxMembers = 4096
	// forgetFailed is how long a failed member is dialed again in case of a partition.
	forgetFailed = time.Hour
	forgetLeft   = 10 * time.Minute
	// nameReclaim is how long memberlist bars a dead node's name to another address, nameRest how
	// long the hello does. Until the death has reached all nodes, some would refuse the newcomer.
	nameReclaim = time.Second
	nameRest    = 3 * time.Second
)

// table holds the other nodes and their changes. memberlist calls it under its own lock, so it
// never calls memberlist.
type table struct {
	self func() Info
	now  func() time.Time

	mu     sync.Mutex
	byName map[string]*member
	// dirty names changed members in order of their first change.
	dirty  []string
	wake   chan struct{}
	closed bool
}

type member struct {
	card  card
	state State
	since time.Time

	dirty bool
	// told is the last event's Info; nil if not alive.
	told *Info
}

func newTable(self func() Info) *table {
	return &table{self: self, now: time.Now, byName: make(map[string]*member), wake: make(chan struct{}, 1)}
}

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

// longestGoneLocked names the member gone longest whose end was reported, or "".
func (t *table) longestGoneLocked() string {
	var oldest string
	for name, m := range t.byName {
		if m.state != StateAlive && !m.dirty && (oldest == "" || m.since.Before(t.byName[oldest].since)) {
			oldest = name
		}
	}
	return oldest
}

func (t *table) alive(n *memberlist.Node) {
	c, err := cardOf(n)
	if err != nil || c.Name == t.self().Name {
		return // admit refused it, or it is this node
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

// events returns the changes since the last call. Another incarnation means failed and joined.
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

func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.dirty = true, nil
}

// list also forgets those gone for long.
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

func (t *table) get(name string) (Status, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil {
		return Status{}, false
	}
	return Status{Info: m.card.Info, State: m.state, Since: m.since}, true
}

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

// holder returns the address of another node that holds info's name, or "".
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

// lives reports whether a member is alive, or failed so recently that peers may not know.
func (t *table) lives(state State, since time.Time) bool {
	return state == StateAlive || state == StateFailed && t.now().Sub(since) < nameRest
}

// raftIDHolder returns another node that holds info's raft id, or "". The id is part of a node's
// data, so one of the two runs on a copy.
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
