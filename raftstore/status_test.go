package raftstore

import "testing"

// TestStatusIsOfOneTerm: a new term that begins while somebody looks makes him look again, so that no leader is told to be that of another's term.
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
