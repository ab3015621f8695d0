package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

func running(f *fleet.Fleet) []*fleet.Node {
	return slices.DeleteFunc(f.Nodes(), func(n *fleet.Node) bool { return !n.Running() })
}

func without(list []*fleet.Node, some ...*fleet.Node) []*fleet.Node {
	return slices.DeleteFunc(slices.Clone(list), func(n *fleet.Node) bool { return slices.Contains(some, n) })
}

type agreement struct {
	group  string
	leader *fleet.Node
	term   uint64
	voters []*fleet.Node
}

func agree(ctx context.Context, t *testing.T, f *fleet.Fleet, voters int) agreement {
	t.Helper()
	for {
		a, err := agreementOf(ctx, f, voters)
		if err == nil {
			return a
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("the routers did not agree: %v", err)
		}
	}
}

func agreementOf(ctx context.Context, f *fleet.Fleet, voters int) (a agreement, err error) {
	var first *admin.RaftStatus
	byID := make(map[string]*fleet.Node)
	for _, n := range running(f) {
		st, err := n.Raft(ctx)
		if err != nil {
			return a, err
		}
		byID[st.ID] = n
		if first == nil {
			first = st
		}
		vote := 0
		for _, s := range st.Servers {
			if s.Voter {
				vote++
			}
		}
		switch {
		case st.Group == "" || st.Leader == "" || st.Version == 0:
			return a, fmt.Errorf("%s is in group %q, led by %q, with state %d, waiting %q", n.Name(), st.Group, st.Leader, st.Version, st.Waiting)
		case st.Group != first.Group || st.Leader != first.Leader || st.Term != first.Term || st.Version != first.Version:
			return a, fmt.Errorf("%s is in group %s, led by %s in term %d, with state %d; %s in %s, %s, %d, %d",
				n.Name(), st.Group, st.Leader, st.Term, st.Version, first.Node, first.Group, first.Leader, first.Term, first.Version)
		case (st.Role == "leader") != (st.Leader == st.ID):
			return a, fmt.Errorf("%s is %s, led by %s", n.Name(), st.Role, st.Leader)
		case vote != voters:
			return a, fmt.Errorf("%s knows %d voters, want %d", n.Name(), vote, voters)
		}
	}
	for id, n := range byID {
		if !slices.ContainsFunc(first.Servers, func(s raftstore.ServerStatus) bool { return s.ID == id }) {
			return a, fmt.Errorf("%s is no server of the group", n.Name())
		}
	}
	a.group, a.term, a.leader = first.Group, first.Term, byID[first.Leader]
	if a.leader == nil {
		return a, fmt.Errorf("%s leads, who does not run", first.Leader)
	}
	a.voters = append(a.voters, a.leader)
	for _, s := range first.Servers {
		if s.Voter && s.ID != first.Leader {
			a.voters = append(a.voters, byID[s.ID])
		}
	}
	return a, nil
}

type writes struct {
	url string

	mu      sync.Mutex
	count   int
	acked   []string // confirmed: must persist
	refused []string // answered with "nothing was changed": must not appear
}

func newWrites(t *testing.T) *writes {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"object":"list","data":[{"id":"idle"}]}`)
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		engine.Close()
	})
	return &writes{url: engine.URL}
}

func (w *writes) write(ctx context.Context, n *fleet.Node) (took time.Duration, err error) {
	w.mu.Lock()
	w.count++
	name := fmt.Sprintf("idle-%d", w.count)
	w.mu.Unlock()
	began := time.Now()
	_, err = n.AddBackends(ctx, []admin.NewBackend{{Name: name, URL: w.url + "/" + name, Models: []string{"idle"}}}, false)
	took = time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	var refusal *admin.Refusal
	switch {
	case err == nil:
		w.acked = append(w.acked, name)
	case errors.As(err, &refusal) && strings.Contains(refusal.Remedy, "nothing was changed"):
		w.refused = append(w.refused, name)
	}
	return took, err
}

func (w *writes) until(ctx context.Context, t *testing.T, n *fleet.Node) (failed int) {
	t.Helper()
	for {
		_, err := w.write(ctx, n)
		if err == nil {
			return failed
		}
		if failed++; sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("no write through %s succeeded any more: %v", n.Name(), err)
		}
	}
}

func (w *writes) check(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	for _, n := range running(f) {
		list, err := n.CurrentBackends(ctx)
		for err != nil {
			if sleep(ctx, 20*time.Millisecond) != nil {
				t.Fatalf("%s cannot tell its backends: %v", n.Name(), err)
			}
			list, err = n.CurrentBackends(ctx)
		}
		has := make(map[string]bool)
		for _, b := range list.Backends {
			has[b.Name] = true
		}
		w.mu.Lock()
		for _, name := range w.acked {
			if !has[name] {
				t.Errorf("%s does not have %s, which was confirmed", n.Name(), name)
			}
		}
		for _, name := range w.refused {
			if has[name] {
				t.Errorf("%s has %s, of which was said that nothing was changed", n.Name(), name)
			}
		}
		w.mu.Unlock()
	}
}

type absences struct {
	mu   sync.Mutex
	list []*absence
}

func (a *absences) begin(n *fleet.Node, at time.Duration) {
	one := &absence{node: n.Name()}
	one.begin(at)
	a.mu.Lock()
	a.list = append(a.list, one)
	a.mu.Unlock()
}

func (a *absences) end(at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.list {
		one.mu.Lock()
		if one.to == 0 {
			one.to = at
		}
		one.mu.Unlock()
	}
}

func (a *absences) excuse(e replay.Ended) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.list, func(one *absence) bool { return one.excuse(e) })
}

func killAll(t *testing.T, nodes ...*fleet.Node) {
	t.Helper()
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			if err := n.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
