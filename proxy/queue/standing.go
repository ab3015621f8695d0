package queue

import (
	"cmp"
	"slices"
	"time"

	"grapevine.example/proxy/clients"
)

// Standing is what waits in a queue now.
type Standing struct {
	Limits     Limits
	Priorities [bands]Waiting // by clients.Priority
	Lines      []Line         // those of most requests first
	More       int            // lines that are left out
	// Rate is the work that leaves while requests wait, in prompt tokens to compute and output tokens per second, over some ten
	// seconds; 0: not known.
	Rate    float64
	Backlog time.Duration // until the present requests have left at Rate; 0: not known
}

// Waiting is requests that wait, with the bytes of their bodies and the work that they are.
type Waiting struct {
	Requests int
	Bytes    int64
	Tokens   float64       // prompt tokens to compute, and output tokens
	Oldest   time.Duration // how long the first of a line has waited, of all lines; 0: none waits
}

// Line is one client's requests of one priority.
type Line struct {
	Client   string // "": requests of no client
	Priority clients.Priority
	Waiting
}

func (w *Waiting) join(f *flow, now time.Duration) {
	w.Requests += f.requests
	w.Bytes += f.bytes
	w.Tokens += f.work
	w.Oldest = max(w.Oldest, now-f.first.since)
}

// Standing describes the queue, with so many lines at most. It looks at each line, not at each request.
func (q *Queue) Standing(lines int, now time.Duration) Standing {
	s := Standing{Limits: q.limits, Backlog: q.Backlog(now), Rate: q.drain.rate()}
	type name struct {
		client   string
		priority int
	}
	at := make(map[name]int)
	for _, l := range q.lanes {
		for p := range l.bands {
			for _, f := range l.bands[p].order {
				s.Priorities[p].join(f, now)
				i, ok := at[name{f.client, p}]
				if !ok {
					i = len(s.Lines)
					at[name{f.client, p}] = i
					s.Lines = append(s.Lines, Line{Client: f.client, Priority: clients.Priority(p)})
				}
				s.Lines[i].join(f, now)
			}
		}
	}
	slices.SortFunc(s.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Client, b.Client), cmp.Compare(b.Priority, a.Priority))
	})
	s.More = max(len(s.Lines)-lines, 0)
	s.Lines = s.Lines[:len(s.Lines)-s.More]
	return s
}
