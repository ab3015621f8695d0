package raftstore

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func (n *node) empty() {
	n.fleet.t.Helper()
	n.kill()
	if err := os.RemoveAll(n.dir); err != nil {
		n.fleet.t.Fatal(err)
	}
}

func groupless(t *testing.T, lasts time.Duration, nodes ...*node) {
	t.Helper()
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, n := range nodes {
			if st := n.store.Load().Status(); st.Group != "" {
				t.Fatalf("%s has group %s", n.name, st.Group)
			}
		}
	}
}

// The log names the missing founder, not too often.
func TestFounderNeverCame(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		f := newFleet(t, 3, func(c *Config) { c.Log = zerolog.New(&lockedBuffer{mu: &mu, b: &log}) })
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		a.start()
		b.start()
		groupless(t, 30*time.Second, a, b)
		if waiting := a.store.Load().Status().Waiting; !strings.Contains(waiting, c.addr()) || strings.Contains(waiting, b.addr()) {
			t.Errorf("it waits %q", waiting)
		}
		mu.Lock()
		if lines := strings.Count(log.String(), "waiting for a group"); lines < 2 || lines > 22 || !strings.Contains(log.String(), c.addr()) {
			t.Errorf("%d lines:\n%s", lines, log.String())
		}
		mu.Unlock()
		c.start()
		apply(t, a.store.Load(), add("one"))
		until(t, "nothing to wait for", func() bool { return a.store.Load().Status().Waiting == "" })
	})
}

type lockedBuffer struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func TestFoundersDiffer(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 4, func(*Config) {})
		lists := [][]int{{0, 1, 2}, {0, 1, 2}, {1, 2, 3}, {2}}
		for i, n := range f.nodes {
			n.edit = func(c *Config) {
				c.Founders = nil
				for _, j := range lists[i] {
					c.Founders = append(c.Founders, f.nodes[j].addr())
				}
			}
		}
		f.start()
		groupless(t, 10*time.Second, f.nodes...)
		for i, want := range []string{sameFounders, sameFounders, sameFounders, "no address of founders"} {
			if waiting := f.nodes[i].store.Load().Status().Waiting; !strings.Contains(waiting, want) {
				t.Errorf("%s waits %q", f.nodes[i].name, waiting)
			}
		}
		for i := range lists {
			lists[i] = []int{2, 1, 0} // the order means nothing
			f.nodes[i].kill()
		}
		f.nodes[3].edit = func(c *Config) { c.Founders, c.Join = nil, true }
		f.start()
		apply(t, f.nodes[0].store.Load(), add("one"))
	})
}

// A list of one founds at once and may name another form of the own address.
func TestFounderAlone(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, nil).start()
		apply(t, f.nodes[0].store.Load(), add("one"))
		other := f.add("b", nil)
		f.wire.alias("b.test:7947", other.addr())
		f.isolate(other)
		other.edit = func(c *Config) { c.Founders = []string{"b.test:7947"} }
		other.start()
		apply(t, other.store.Load(), add("two"))
	})
}

// A founder that lost its data joins with a new id.
func TestEmptiedFounder(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		for _, n := range f.nodes {
			old := *n.id.Load()
			n.empty()
			s := n.start()
			if s.ID() == old {
				t.Error("the id is the same")
			}
			// On every node: the leader alone may have a configuration that is not committed, which
			// is lost with the leader's data.
			until(t, "three voters again", func() bool {
				return !slices.ContainsFunc(f.running(), func(s2 *Store) bool {
					got := voters(s2)
					return len(got) != 3 || !slices.Contains(got, s.ID()) || slices.Contains(got, old)
				})
			})
			until(t, "it to know", func() bool { return has(s.State(), "one") })
		}
	})
}

// Two emptied founders found nothing while the third has the group.
func TestTwoEmptiedFounders(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		apply(t, a.store.Load(), add("one"))
		until(t, "a to know", func() bool { return has(a.store.Load().State(), "one") })
		b.empty()
		c.empty()
		a.kill()
		b.start()
		c.start()
		groupless(t, 5*time.Second, b, c) // they wait for an answer
		a.start()
		groupless(t, 5*time.Second, b, c) // they wait for its leader
		if waiting := b.store.Load().Status().Waiting; !strings.Contains(waiting, "to be taken into the group of") {
			t.Errorf("it waits %q", waiting)
		}
		a.kill()
		a.recover(a.voter())
		a.start()
		apply(t, a.inService(), add("two"))
		for _, n := range []*node{b, c} {
			until(t, "it to be taken in", func() bool { return has(n.store.Load().State(), "two") && has(n.store.Load().State(), "one") })
		}
	})
}

// A founder that ends before raft has the servers founds after a restart.
func TestFounderEndsWhileFounding(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil)
		var servers []Server
		for _, n := range f.nodes {
			n.edit = func(c *Config) { c.Met = func() bool { return false } }
			n.start()
			servers = append(servers, n.voter())
		}
		for _, n := range f.nodes { // as if all ended there
			s := n.store.Load()
			s.identMu.Lock()
			if err := s.setIdentity(identity{ID: s.id, Group: groupID{7}, Founding: servers}); err != nil {
				t.Fatal(err)
			}
			s.identMu.Unlock()
			n.kill()
		}
		f.start()
		apply(t, f.nodes[0].store.Load(), add("one"))
		if st := f.nodes[2].store.Load().Status(); st.Group != (groupID{7}).String() || len(st.Servers) != 3 {
			t.Errorf("%+v", st)
		}
	})
}

func TestJoinIsOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *Config) { c.Founders, c.Join = nil, true })
		s := f.nodes[0].start()
		first := joinRequest{Group: groupID{1}, Leader: "x"}
		for range 2 {
			if err := s.join(first); err != nil {
				t.Fatal(err)
			}
		}
		for text, req := range map[string]joinRequest{
			"belongs to group": {Group: groupID{2}}, "no group": {}, "format": {Group: groupID{2}, Format: newestFormat + 1},
		} {
			if err := s.join(req); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%+v: %v", req, err)
			}
		}
	})
}

// foundingModel is the protocol of three founders in every order; the product decides.
type foundingModel struct {
	nodes [3]modelNode
	lost  string // ids that lost their data
	lived string // groups that had a majority of their founders at one time
}

type modelNode struct {
	life     int // how often the data was lost
	group    groupID
	founding string       // ids
	answers  [3]*answered // collected in the current round
}

func (m *foundingModel) id(i int) string { return fmt.Sprintf("%d.%d", i, m.nodes[i].life) }

func modelAddr(i int) string { return fmt.Sprintf("h%d:1", i) }

func (m *foundingModel) key() string {
	var b strings.Builder
	fmt.Fprint(&b, m.lost, "|", m.lived)
	for _, n := range m.nodes {
		fmt.Fprint(&b, "|", n.life, n.group, n.founding)
		for _, a := range n.answers {
			if a != nil {
				fmt.Fprint(&b, ";", a.info.ID, a.info.Group)
			} else {
				b.WriteString(";-")
			}
		}
	}
	return b.String()
}

func serversOf(ids string) (list []Server) {
	for _, id := range strings.Fields(ids) {
		list = append(list, Server{ID: id, Addr: modelAddr(int(id[0] - '0')), Voter: true})
	}
	return list
}

// lives notes the groups that can commit now; two with a shared, kept history are a violation.
func (m *foundingModel) lives() (violated bool) {
	for _, n := range m.nodes {
		if n.founding == "" {
			continue
		}
		there := 0
		for i := range m.nodes {
			if m.nodes[i].group == n.group && strings.Contains(n.founding, m.id(i)) {
				there++
			}
		}
		mark := n.group.String() + "=" + n.founding + ","
		if there < 2 || strings.Contains(m.lived, mark) {
			continue
		}
		for _, other := range strings.Split(strings.TrimSuffix(m.lived, ","), ",") {
			gone := 0
			_, founders, _ := strings.Cut(other, "=")
			for _, id := range strings.Fields(founders) {
				if strings.Contains(m.lost, id) {
					gone++
				}
			}
			violated = violated || other != "" && gone < 2
		}
		m.lived += mark
	}
	return violated
}

func (m *foundingModel) next(losses int) (list []foundingModel) {
	founders := []string{modelAddr(0), modelAddr(1), modelAddr(2)}
	for i := range m.nodes {
		n := &m.nodes[i]
		if n.life < 1 && len(strings.Fields(m.lost)) < losses {
			s := *m
			s.lost += m.id(i) + " "
			s.nodes[i] = modelNode{life: n.life + 1}
			list = append(list, s)
		}
		if n.group != (groupID{}) {
			continue
		}
		var answers []answered
		for j := range m.nodes {
			switch {
			case j == i:
			case n.answers[j] != nil:
				answers = append(answers, *n.answers[j])
			default: // node j answers node i now
				s, o := *m, &m.nodes[j]
				s.nodes[i].answers[j] = &answered{Peer: Peer{Addr: modelAddr(j)}, info: info{
					identity: identity{ID: m.id(j), Group: o.group, Founding: serversOf(o.founding)}, Addr: modelAddr(j), Founders: founders,
				}}
				list = append(list, s)
			}
			// A leader adds node i.
			if o := &m.nodes[j]; j != i && o.group != (groupID{}) && strings.Contains(m.lived, o.group.String()) {
				s := *m
				s.nodes[i] = modelNode{life: n.life, group: o.group}
				list = append(list, s)
			}
		}
		if len(answers) < 2 {
			continue
		}
		store := &Store{id: m.id(i), addr: modelAddr(i), cfg: Config{Founders: founders}}
		group, servers, waiting := store.founding(answers, true)
		s := *m
		s.nodes[i].answers = [3]*answered{}
		if waiting == "" {
			var ids []string
			for _, v := range servers {
				ids = append(ids, v.ID)
			}
			slices.Sort(ids)
			s.nodes[i].group, s.nodes[i].founding = group, strings.Join(ids, " ")
		}
		list = append(list, s)
	}
	return list
}

// At most one group takes changes, unless most founders lost their data.
func TestNoOrderFoundsTwoGroups(t *testing.T) {
	t.Parallel()
	const losses = 2
	todo := []foundingModel{{}}
	seen, living := map[string]bool{todo[0].key(): true}, 0
	for len(todo) > 0 {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, s := range m.next(losses) {
			if s.lives() {
				t.Fatalf("two groups: %s", s.key())
			}
			if key := s.key(); !seen[key] {
				seen[key] = true
				todo = append(todo, s)
				if s.lived != "" {
					living++
				}
			}
		}
	}
	t.Logf("%d states, %d of them with a group", len(seen), living)
	if living == 0 {
		t.Error("no order founds a group")
	}
}
