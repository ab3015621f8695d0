package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"grapevine/raftstore"
)

// TestChangesComeAfterOwnList: an operator who is faster than the founding of the fleet does not make a state in which nothing but his change
// is: what the nodes have in their configuration comes first.
func TestChangesComeAfterOwnList(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1", "http://127.0.0.1:2"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := raftstore.Open(raftstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	n.store.Store(s)
	change := raftstore.AddBackends{Backends: []raftstore.BackendSpec{{Name: "early", URL: "http://127.0.0.1:3"}}}
	early, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.change(early, change); !errors.Is(err, errNotSaid) || refusalOf(err).status != 503 {
		t.Errorf("a change before the node's own list: %v", err)
	}
	if st := s.State(); len(st.Backends) != 0 {
		t.Errorf("it was made: %+v", st.Backends)
	}
	waiting := make(chan error)
	go func() {
		_, err := n.change(t.Context(), change)
		waiting <- err
	}()
	n.proposeOwn(t.Context(), s)
	if err := <-waiting; err != nil {
		t.Errorf("a change after it: %v", err)
	}
	st := s.State()
	last, _ := st.Backend("early")
	for i := range st.Backends {
		if b := &st.Backends[i]; b.Name != "early" && b.Version >= last.Version {
			t.Errorf("%s came at version %d, the change at %d", b.Name, b.Version, last.Version)
		}
	}
	if len(st.Backends) != 3 {
		t.Errorf("%d backends, want the two configured and the operator's", len(st.Backends))
	}
}
