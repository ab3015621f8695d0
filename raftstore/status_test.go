package raftstore

import "testing"

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
