package raftstore

import (
	"testing"
	"time"
)

// No leader is reported for another's term.
func TestStatusIsOfOneTerm(t *testing.T) {
	term, leader := uint64(2), "a"
	looks, seen := 0, ""
	got := inOneTerm(func() uint64 { return term }, func() {
		seen = leader
		if looks++; looks == 1 {
			term, leader = 3, "b"
		}
	})
	if got != 3 || seen != "b" || looks != 2 {
		t.Errorf("in term %d leader %q, after %d looks", got, seen, looks)
	}
}

// A heartbeat of the old leader that arrives while a voter writes a new term does not make it name
// that leader in the new term.
func TestOldLeaderIsNotNamedInANewTerm(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		old := f.leader()
		var others []*node
		for _, n := range f.nodes {
			if n != old {
				others = append(others, n)
			}
		}
		voter, next := others[0], others[1]
		until(t, "three voters", func() bool {
			return len(voter.store.Load().Status().Servers) == 3 && voter.store.Load().Status().Leader == *old.id.Load()
		})
		term := voter.store.Load().Status().Term
		voter.pause()
		old.pause()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = old.store.Load().Transfer(t.Context(), *next.id.Load()) // cannot end in time
		}()
		until(t, "the election", func() bool { return next.store.Load().Status().Term > term })
		time.Sleep(quickTimers().Heartbeat) // the old leader's heartbeats arrive
		f.isolate(next)
		voter.resume()
		until(t, "the new term", func() bool {
			st := voter.store.Load().Status()
			if st.Term > term && st.Leader == *old.id.Load() {
				t.Fatalf("in term %d it names the leader of term %d", st.Term, term)
			}
			return st.Term > term
		})
		old.resume()
		f.heal()
		<-done
		f.leader()
	})
}
