package scenario

import (
	"cmp"
	"sync"
	"time"

	"grapevine.example/chaos/engine"
)

// Outcome is how one attempt of a client ended.
type Outcome string

// A router may end a request with one of the first four only.
const (
	Complete   Outcome = "complete"
	Refused    Outcome = "refused"     // an error answer in the API's own shape
	ErrorEvent Outcome = "error-event" // an error event ended an answer that had begun
	Departed   Outcome = "departed"

	Unanswered Outcome = "unanswered"
	Broken     Outcome = "broken"
	Truncated  Outcome = "truncated"
	Foreign    Outcome = "foreign"
	Malformed  Outcome = "malformed"
	Silent     Outcome = "silent"
)

// Attempt is one request as sent once. Times count from the begin of traffic; negative: never.
type Attempt struct {
	ID      string // x-request-id, unique to this attempt
	Request int    // equal for all attempts of one request
	Try     int
	Last    bool
	Session int
	Turn    int
	Shape   string
	Client  string // "" without a clients file

	Sent, Head, First, End time.Duration
	Conn                   string // the client's end of the connection
	Reused                 bool   // the connection had carried a request before

	Node, Backend string // from the answer's header; may be ""
	Route         string // the router's reason for its choice
	Outcome       Outcome
	Status        int // 0 without a header
	Detail        string
	Text, Want    int // bytes of the reply: received, expected

	Prompt, Cached, Output int // tokens by the answer's usage; -1 without
	// Possible is how many prompt tokens an engine with the whole conversation could have cached, 0
	// if unknown; Kept is when engine By computed them.
	Possible int
	Kept     time.Duration
	By       string
}

func (a *Attempt) failed() bool { return a.Outcome != Complete && a.Outcome != Departed }

// ledger holds the observations of clients and engines. Safe for concurrent use.
type ledger struct {
	began time.Time

	mu       sync.Mutex
	attempts []*Attempt
	ended    int
	failed   int
	visits   map[string][]visit
	engines  map[string]string
}

type visit struct {
	Engine       string
	Began, Ended time.Duration
	Departed     bool
}

func newLedger() *ledger { return &ledger{began: time.Now(), visits: make(map[string][]visit)} }

// begin sets the zero of the run's time and the engines' names by address.
func (l *ledger) begin(engines map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.engines = time.Now(), engines
}

func (l *ledger) now() time.Duration { return time.Since(l.began) }

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

func (l *ledger) watch(v engine.Visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := visit{Engine: cmp.Or(l.engines[v.Engine], v.Engine), Began: l.at(v.Began), Ended: -1, Departed: v.Departed}
	list := l.visits[v.ID]
	if v.Ended.IsZero() {
		l.visits[v.ID] = append(list, one)
		return
	}
	one.Ended = l.at(v.Ended)
	for i := range list {
		if list[i].Began == one.Began && list[i].Ended < 0 {
			list[i] = one
			return
		}
	}
}

func (l *ledger) count() (ended, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended, l.failed
}
