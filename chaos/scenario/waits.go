package scenario

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"grapevine.example/chaos/fleet"
)

// stay is a client's attempt in the fleet: it waits from sent on, until an engine begins it. It is small, because a run
// makes millions.
type stay struct {
	sent, began, end time.Duration // began < 0: at no engine
	left             time.Duration // the last engine; 0: unknown
	tokens           float32       // that the engine computed
	client           int16         // in evidence.clients
	admitted         bool          // surely: it came to an engine
	refused          bool
}

// waited is when the attempt got an engine, or ended without one.
func (s *stay) waited() time.Duration {
	if s.began >= 0 {
		return s.began
	}
	return s.end
}

func (e *evidence) stayOf(a *Attempt) (s stay, ok bool) {
	i := slices.IndexFunc(e.clients, func(c Client) bool { return c.Name == a.Client })
	if i < 0 {
		return s, false
	}
	s = stay{sent: a.Sent, began: -1, end: a.End, client: int16(i), refused: a.Outcome == Refused}
	if v := e.visits[a.ID]; len(v) > 0 {
		s.began, s.admitted = v[0].Began, true
		s.left = max(v[len(v)-1].Ended, 0)
	}
	if a.Outcome == Complete {
		// Without the engine's counts, or with false ones: about a token in four bytes.
		s.tokens = float32(a.Want) / 4
		if a.Prompt >= 0 && !e.harmed(a.Backend, []string{"lie"}, a.Sent, a.End) {
			s.tokens = float32(a.Prompt - max(a.Cached, 0) + a.Output)
		}
	}
	return s, true
}

func (e *evidence) mayBeRefused(client string) bool {
	return slices.ContainsFunc(e.clients, func(c Client) bool { return c.Name == client && c.Refused })
}

const (
	// shareOver is how long clients' work is added up, which is a few hundred requests.
	shareOver = 4 * time.Second
	shareStep = 50 * time.Millisecond
	// leastOfShare allows for the work that a router passes over for a better match, and for what waits
	// at some routers only.
	leastOfShare = 0.5
)

var shareKept = Invariant{
	Name: "share-kept",
	Promise: "while requests of two clients wait, none gets much more work per weight than the other, however many it sends and wherever " +
		"they enter, unless the routers are partitioned or one is paused",
	Bound: "in each 4 s: at least half of the other's, but for a request of each at each node",
	Seen:  "clients know when they sent, engines when they began and what they computed",
	judge: func(e *evidence, f *finding) {
		if e.wait == 0 {
			return
		}
		all, largest := e.doings()
		least := 1.0
		for at := e.calm; at+shareOver <= e.stopped; at += shareOver / 2 {
			if e.harmed(fleet.Everybody, []string{"partition", "pause"}, at, at+shareOver) {
				continue // a router cannot know what waits beyond it, and what waits at a paused one gets no turn
			}
			from, to := int(at/shareStep), int((at+shareOver)/shareStep)
			for i := range all {
				for j := range all {
					if i == j || !all[i].waits(from, to, len(e.nodes)) || !all[j].waits(from, to, len(e.nodes)) {
						continue
					}
					f.checked++
					less, more := all[i].work(from, to), all[j].work(from, to)
					if more > 0 {
						least = min(least, less/more)
					}
					if less+float64(len(e.nodes))*(largest[i]+largest[j]) < leastOfShare*more {
						f.violate(at, "engines", "in %v from here %s gets %.0f tokens per weight, and %s %.0f, although requests of both wait all the time",
							shareOver, e.clients[i].Name, less, e.clients[j].Name, more)
					}
				}
			}
		}
		f.note = fmt.Sprintf("the least of another's: %.2f", least)
	},
}

// doing is what one client's requests do over time, in steps of shareStep.
type doing struct {
	waiting []int     // requests, at the begin of each step
	tokens  []float64 // per weight, of requests that an engine began in each step
}

// doings returns what each client does, and the tokens per weight of its largest request.
func (e *evidence) doings() (out []doing, largest []float64) {
	steps := int(e.drained/shareStep) + 1
	largest = make([]float64, len(e.clients))
	for range e.clients {
		out = append(out, doing{make([]int, steps), make([]float64, steps)})
	}
	for i := range e.past.stays {
		s := &e.past.stays[i]
		l := &out[s.client]
		from := s.sent
		if s.refused { // by a limit, perhaps, before it could wait
			from += staleAfter
		}
		for at := int(from/shareStep) + 1; at <= int(s.waited()/shareStep) && at < steps; at++ {
			l.waiting[at]++
		}
		if at := int(s.began / shareStep); s.began >= 0 && at < steps {
			tokens := float64(s.tokens) / cmp.Or(e.clients[s.client].Weight, 1)
			l.tokens[at] += tokens
			largest[s.client] = max(largest[s.client], tokens)
		}
	}
	return out, largest
}

func (l *doing) waits(from, to, least int) bool {
	return !slices.ContainsFunc(l.waiting[from:to], func(n int) bool { return n < least })
}

func (l *doing) work(from, to int) (sum float64) {
	for _, t := range l.tokens[from:to] {
		sum += t
	}
	return sum
}

// staleAfter is how old peers' reports may be: far more than is measured, on a busy machine. So long a router may also take until it
// admits or refuses a request.
const staleAfter = time.Second

// held is when a request surely counts against a limit: at the latest from a second after it was sent, and until an engine has ended
// it. On a busy machine its router reads it, and its client the end, much later.
func (s *stay) held() (from, to time.Duration) {
	from, to = min(s.began, s.sent+staleAfter), s.end
	if s.left > 0 {
		to = min(to, s.left)
	}
	return from, to
}

var limitKept = Invariant{
	Name:    "limit-kept",
	Promise: "a client has no more requests in flight over the fleet than its limit allows, wherever they enter",
	Bound: "the limit, one request for each node, and those that ended in the last 2 s before one was admitted: two stalenesses; " +
		"a request is admitted within a second, or when an engine begins it",
	Seen: "clients know when they sent, engines when they began and ended",
	judge: func(e *evidence, f *finding) {
		for i, c := range e.clients {
			if c.InFlight == 0 {
				continue
			}
			var all []*stay
			var ended []time.Duration
			for k := range e.past.stays {
				if s := &e.past.stays[k]; int(s.client) == i && s.admitted {
					_, to := s.held()
					all, ended = append(all, s), append(ended, to)
				}
			}
			slices.SortFunc(all, func(a, b *stay) int {
				from, _ := a.held()
				other, _ := b.held()
				return cmp.Compare(from, other)
			})
			slices.Sort(ended)
			before := func(at time.Duration) int { // how many ended
				n, _ := slices.BinarySearch(ended, at)
				return n
			}
			for n, s := range all {
				at, _ := s.held()
				inFlight, lately := n+1-before(at), before(at)-before(s.sent-2*staleAfter)
				if inFlight >= c.InFlight {
					f.checked++
				}
				if inFlight > c.InFlight+len(e.nodes)+lately {
					f.violate(at, "all nodes", "%s has %d requests in flight, of %d, and %d ended in the %v before one was admitted", c.Name, inFlight, c.InFlight, lately, 2*staleAfter)
				}
			}
		}
	},
}

// held is an attempt at an engine. It is small, because a run makes millions.
type held struct {
	began, ended time.Duration
	engine       int16 // in evidence.engines
}

func (e *evidence) heldFor(a *Attempt) (out []held) {
	for _, v := range e.visits[a.ID] {
		if v.Ended < 0 { // departures-end looks for those that never end
			v.Ended = max(a.End, v.Began)
		}
		if i := slices.Index(e.engines, v.Engine); i >= 0 {
			out = append(out, held{v.Began, v.Ended, int16(i)})
		}
	}
	return out
}

// placesSlack is how much later than a router an engine may see that a request has ended, on a busy machine.
const placesSlack = 50 * time.Millisecond

// reunited is how long routers may take to connect again after a partition.
const reunited = 2 * time.Second

var placesKept = Invariant{
	Name:    "places-kept",
	Promise: "an engine holds no more requests than queue_in_flight and one for each router, unless the routers are partitioned, or were two seconds before",
	Bound:   "for 50 ms, in which a busy engine counts requests that have ended for its router",
	Seen:    "engines know when each request began and ended",
	judge: func(e *evidence, f *finding) {
		if e.places == 0 {
			return
		}
		bound, most := e.places+len(e.nodes), 0
		all := make([][2][]time.Duration, len(e.engines)) // of each engine, when requests began and ended
		for _, h := range e.past.held {
			all[h.engine][0] = append(all[h.engine][0], h.began)
			all[h.engine][1] = append(all[h.engine][1], h.ended)
		}
		for i, times := range all {
			began, ended := times[0], times[1]
			slices.Sort(began)
			slices.Sort(ended)
			worst, since := 0, time.Duration(-1) // beyond the bound
			for next, done := 0, 0; done < len(ended); {
				at := ended[done]
				if next < len(began) && began[next] < at {
					at = began[next]
					next++
				} else {
					done++
				}
				n := next - done
				most = max(most, n)
				if n >= e.places {
					f.checked++
				}
				if n > bound {
					worst = max(worst, n)
					if since < 0 {
						since = at
					}
					continue
				}
				if since >= 0 && at-since > placesSlack && !e.harmed(fleet.Everybody, []string{"partition"}, since-reunited, at) {
					f.violate(since, e.engines[i], "held up to %d requests, more than %d, for %v", worst, bound, at-since)
				}
				worst, since = 0, -1
			}
		}
		f.note = fmt.Sprintf("at most %d requests at an engine", most)
	},
}

// waitSlack is for a busy machine, and for the engines that a request tries after its turn. What is lost waits for
// as long as its client.
const waitSlack = 5 * time.Second

var waitsEnd = Invariant{
	Name:       "waits-end",
	Promise:    "a request that waits at a router leaves the queue: to an engine, with 429, or with its client; none is lost there, none stays too long",
	Bound:      "queue_timeout (10 s) and 5 s",
	Seen:       "when clients sent, engines began and answers ended; that requests waited, by each node's metrics every two seconds",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		if e.wait == 0 {
			return
		}
		for _, a := range e.attempts {
			visits := e.visits[a.ID]
			waited := a.End - a.Sent
			if len(visits) > 0 {
				waited = visits[0].Began - a.Sent
			}
			if waited <= shareStep && a.Status != http.StatusTooManyRequests || e.nodeLost(a.Node, a.Sent, a.End) || e.overstayed(a) {
				continue
			}
			if a.Outcome == Unanswered && a.Reused && waited <= staleAfter && len(visits) == 0 && e.harmed(fleet.Everybody, []string{"stop", "roll"}, a.Sent, a.End) {
				continue // a node that stops may close a kept connection on which a request is under way
			}
			f.checked++
			switch {
			case waited > e.wait+waitSlack:
				f.violate(a.Sent+e.wait+waitSlack, a.place(), "%s waited for %v, and ended as %s at %v", a.ID, waited, a.Outcome, a.End)
			case len(visits) == 0 && a.Outcome != Departed && a.Outcome != Refused:
				f.violate(a.End, a.place(), "%s waited for %v, came to no engine, and ended as %s: %s", a.ID, waited, a.Outcome, a.Detail)
			}
		}
		if e.partial {
			return
		}
		waited := e.queued()
		f.note = fmt.Sprintf("%.0f or more waited in a queue", waited)
		if waited == 0 {
			f.checked = 0 // what came to an engine late was late elsewhere
		}
	},
}

// queued is how many requests waited in queues, without those in a process's last two seconds.
func (e *evidence) queued() (sum float64) {
	for _, s := range e.seen {
		for i, r := range s.usage {
			if i+1 == len(s.usage) || s.usage[i+1].pid != r.pid {
				sum += r.waited
			}
		}
	}
	return sum
}
