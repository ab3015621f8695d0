package scenario

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"grapevine/chaos/engine"
)

// Outcome is how one attempt of a client ended. Each ends in exactly one.
type Outcome string

// The outcomes. The first four are ends that a router may give to a request, the others are not.
const (
	Complete   Outcome = "complete"    // the whole answer, and its end
	Refused    Outcome = "refused"     // an error answer in the API's own shape
	ErrorEvent Outcome = "error-event" // an answer that had begun ended with an error event
	Departed   Outcome = "departed"    // the client left on purpose

	Unanswered Outcome = "unanswered" // the connection failed before an answer began
	Broken     Outcome = "broken"     // the connection failed within the answer
	Truncated  Outcome = "truncated"  // the answer ended in order, but without its end
	Foreign    Outcome = "foreign"    // bytes came that are not of this answer
	Malformed  Outcome = "malformed"  // not the expected protocol
	Silent     Outcome = "silent"     // no end within the client's patience
)

// Attempt is one request as it was sent once. Times are since the traffic began; negative ones never were.
type Attempt struct {
	ID      string // x-request-id, of this attempt alone
	Request int    // a request is made again after its connection failed, as the official clients do
	Try     int    // from 0
	Last    bool   // no further attempt followed
	Session int
	Turn    int // from 1
	Shape   string

	Sent, Head, First, End time.Duration
	Conn                   string // the client's end of the connection
	Reused                 bool   // it had carried a request before

	Node, Backend string // as the answer's head says; "" without
	Route         string // how the router chose, in its own words
	Outcome       Outcome
	Status        int // 0 without a head
	Detail        string
	Text, Want    int // bytes of the reply that came, that should come

	Prompt, Cached, Output int // tokens as the answer says; -1 without
	// Possible is how many prompt tokens an engine that had the whole conversation so far could have had cached, 0 if that is not known; Kept
	// is when that was computed, and By where.
	Possible int
	Kept     time.Duration
	By       string
}

// failed says that the client did not get what it asked for, and did not leave.
func (a *Attempt) failed() bool { return a.Outcome != Complete && a.Outcome != Departed }

// ledger holds everything that clients and engines saw. Safe for concurrent use.
type ledger struct {
	began time.Time

	mu       sync.Mutex
	attempts []*Attempt // without those that were taken
	ended    int        // of all
	failed   int
	visits   map[string][]visit
	engines  map[string]string // host:port -> name
}

// visit is one request as an engine saw it; times as in Attempt.
type visit struct {
	engine       string
	began, ended time.Duration // ended is negative while it is being served
	departed     bool
}

func newLedger() *ledger { return &ledger{began: time.Now(), visits: make(map[string][]visit)} }

// begin is when the times of the run count from, and what the engines are called, by their addresses. Nobody sends before.
func (l *ledger) begin(engines map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.engines = time.Now(), engines
}

func (l *ledger) now() time.Duration { return time.Since(l.began) }

// at is a moment as the run's time.
func (l *ledger) at(t time.Time) time.Duration { return t.Sub(l.began) }

func (l *ledger) add(a *Attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempts = append(l.attempts, a)
	l.ended++
	if a.failed() {
		l.failed++
	}
}

// watch takes what engines tell of their requests.
func (l *ledger) watch(v engine.Visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := visit{engine: l.engines[v.Engine], began: l.at(v.Began), ended: -1, departed: v.Departed}
	if one.engine == "" {
		one.engine = v.Engine
	}
	list := l.visits[v.ID]
	if v.Ended.IsZero() {
		l.visits[v.ID] = append(list, one)
		return
	}
	one.ended = l.at(v.Ended)
	for i := range list {
		if list[i].began == one.began && list[i].ended < 0 {
			list[i] = one
			return
		}
	}
}

// all returns the attempts that were not taken, by when they were sent, and the visits by attempt. Nothing may be under way.
func (l *ledger) all() ([]*Attempt, map[string][]visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.attempts, func(a, b *Attempt) int { return cmp.Compare(a.Sent, b.Sent) })
	return l.attempts, l.visits
}

// count is how far it has come: attempts that ended, and how many of them failed.
func (l *ledger) count() (ended, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended, l.failed
}
