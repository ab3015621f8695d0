package queue

import (
	"testing"
	"time"

	"grapevine.example/proxy/clients"
)

func TestStandingCountsEachLineOnce(t *testing.T) {
	q := small(t, 100)
	at := func(w *Waiter, second int) *Waiter {
		if _, err := q.Push(w, time.Duration(second)*time.Second); err != nil {
			t.Fatal(err)
		}
		return w
	}
	for i := range 3 {
		at(request("many", 100), 1+i)
	}
	other := request("many", 100) // of another model
	other.Lane = engines + 1
	at(other, 7)
	low := request("many", 50)
	low.Priority = clients.Batch
	at(low, 2)
	at(request("few", 10), 5)
	s := q.Standing(2, 11*time.Second)
	want := []Line{
		{"many", clients.Default, Waiting{4, 400, 400, 10 * time.Second}},
		{"few", clients.Default, Waiting{1, 100, 10, 6 * time.Second}},
	}
	if len(s.Lines) != 2 || s.Lines[0] != want[0] || s.Lines[1] != want[1] || s.More != 1 {
		t.Errorf("lines %+v and %d more, want %+v and 1", s.Lines, s.More, want)
	}
	if got := s.Priorities; got[clients.Default] != (Waiting{5, 500, 410, 10 * time.Second}) || got[clients.Batch] != (Waiting{1, 100, 50, 9 * time.Second}) || got[clients.Interactive] != (Waiting{}) {
		t.Errorf("priorities %+v", got)
	}
	if s.Limits.Requests != 100 || s.Rate != 0 || s.Backlog != 0 {
		t.Errorf("limits %+v, rate %v, backlog %v", s.Limits, s.Rate, s.Backlog)
	}
	for range 5 {
		next(q, 0, 12*time.Second)
	}
	s = q.Standing(2, 12*time.Second)
	if left := s.Priorities[clients.Batch].Tokens + s.Priorities[clients.Default].Tokens; s.Rate <= 0 || s.Backlog != time.Duration(left/s.Rate*float64(time.Second)) {
		t.Errorf("rate %v, backlog %v, %v tokens left", s.Rate, s.Backlog, left)
	}
}
