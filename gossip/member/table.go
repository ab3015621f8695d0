package member

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	maxMembers   = 4096      // the most a mesh of streams can bear
	forgetFailed = time.Hour // dialed again until then, in case of a partition
	forgetLeft   = 10 * time.Minute
	// How long memberlist and the hello bar a dead node's name to another address: until the death
	// has reached all nodes, some would refuse the newcomer.
	nameReclaim = time.Second
	nameRest    = 3 * time.Second
)

// memberlist calls table under its own lock, so table never calls memberlist.
type table struct {
	self func() Info

	mu     sync.Mutex
	byName map[string]*member
	// In order of their first change since the last events.
	changed []string
	wake    chan struct{}
	closed  bool
}

type member struct {
	Status
	leaving bool
	changed bool  // its name is in table.changed
	event   *Info // of the last event; nil if that was the member's end, or there was none
}

func newTable(self func() Info) *table {
	return &table{self: self, byName: make(map[string]*member), wake: make(chan struct{}, 1)}
}

func metaOf(n *memberlist.Node) (meta, error) {
	c, err := decodeMeta(n.Meta)
	if err != nil {
		return meta{}, err
	}
	if c.Name != n.Name {
		return meta{}, fmt.Errorf("%w: %q in the metadata of %q", errInfo, c.Name, clean(n.Name, maxName))
	}
	addr, ok := netip.AddrFromSlice(n.Addr)
	if !ok || addr.IsUnspecified() || addr.IsMulticast() || n.Port == 0 {
		return meta{}, fmt.Errorf("%w: address %s", errInfo, nodeAddr(n))
	}
	c.Addr = nodeAddr(n)
	return c, nil
}

func nodeAddr(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

func (t *table) admit(n *memberlist.Node) (Info, error) {
	c, err := metaOf(n)
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

// Only members whose end was reported; "" if there is none.
func (t *table) longestGoneLocked() string {
	var oldest string
	for name, m := range t.byName {
		if m.State != StateAlive && !m.changed && (oldest == "" || m.Since.Before(t.byName[oldest].Since)) {
			oldest = name
		}
	}
	return oldest
}

func (t *table) alive(n *memberlist.Node) {
	c, err := metaOf(n)
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
	if m.State != StateAlive || m.Incarnation != c.Incarnation {
		m.State, m.Since = StateAlive, time.Now()
	}
	m.Info, m.leaving = c.Info, c.Leaving
	t.touchLocked(m)
}

func (t *table) gone(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil || m.State != StateAlive {
		return
	}
	m.State, m.Since = StateFailed, time.Now()
	if m.leaving {
		m.State = StateLeft
	}
	t.touchLocked(m)
}

func (t *table) touchLocked(m *member) {
	if t.closed || m.changed {
		return
	}
	m.changed = true
	t.changed = append(t.changed, m.Name)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Another incarnation means failed and joined.
func (t *table) events() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Event
	for _, name := range t.changed {
		m := t.byName[name]
		m.changed = false
		if m.event != nil && (m.State != StateAlive || m.event.Incarnation != m.Incarnation) {
			kind := Failed
			if m.State == StateLeft {
				kind = Left
			}
			out = append(out, Event{Kind: kind, Member: *m.event})
			m.event = nil
		}
		if m.State != StateAlive || m.event != nil && *m.event == m.Info {
			continue
		}
		kind := Joined
		if m.event != nil {
			kind = Updated
		}
		info := m.Info
		m.event = &info
		out = append(out, Event{Kind: kind, Member: info})
	}
	t.changed = t.changed[:0]
	return out
}

func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// list forgets members gone for long.
func (t *table) list() []Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byName, func(_ string, m *member) bool {
		age := time.Since(m.Since)
		return !m.changed && (m.State == StateFailed && age > forgetFailed || m.State == StateLeft && age > forgetLeft)
	})
	out := make([]Status, 0, len(t.byName))
	for _, m := range t.byName {
		out = append(out, m.Status)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (t *table) get(name string) (s Status, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil {
		return Status{}, false
	}
	return m.Status, true
}

// A node conflicts if another one holds its name or raft id and is alive, or failed so recently
// that peers may not know. One of two nodes with a raft id runs on a copy.
func (t *table) conflict(info *Info) error {
	name := func(holder string) error {
		return &MismatchError{Field: FieldName, Mine: holder, Theirs: info.Addr, Peer: info.Name}
	}
	raftID := func(holder *Info) error {
		return &MismatchError{Field: FieldRaftID, Mine: holder.Name + " (" + holder.Addr + ")", Theirs: info.Addr, Peer: info.Name}
	}
	self := t.self()
	switch {
	case info.Name == self.Name && (info.Addr != self.Addr || info.Incarnation != self.Incarnation):
		return name(self.Addr)
	case info.Name != self.Name && info.RaftID != "" && info.RaftID == self.RaftID:
		return raftID(&self)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.byName {
		if m.Addr == info.Addr || m.State == StateLeft || m.State == StateFailed && time.Since(m.Since) >= nameRest {
			continue
		}
		if m.Name == info.Name && m.Name != self.Name {
			return name(m.Addr)
		}
		if m.Name != info.Name && info.RaftID != "" && m.RaftID == info.RaftID {
			return raftID(&m.Info)
		}
	}
	return nil
}
