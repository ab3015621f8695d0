package clients

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// Meter counts what clients use over the fleet, and admits requests within their limits; DESIGN.md
// has the rules and their bound. Safe for concurrent use; it does not block. Times are those of Now,
// or of a virtual clock.
type Meter struct {
	began    time.Time
	accounts atomic.Pointer[map[*Client]*account] // replaced, never written
	fleet    atomic.Pointer[Fleet]

	mu      sync.Mutex // taken before account.mu
	byKey   map[uint32]*account
	origins map[string]*origin
	active  []*account // used by this node's requests
}

// Fleet is what the meter must know of the nodes.
type Fleet struct {
	Heard     int           // nodes whose use is known, including this one
	Nodes     int           // of the fleet, those that cannot be heard included
	Staleness time.Duration // of peers' use
	Silent    bool          // one of the heard is late: its latest use may be missing
	Processes int           // of this node, which share its part while one replaces another; 0: one
}

// Use is what one node's requests take of one client's limits.
type Use struct {
	Client   uint32 `json:"client"`    // key of its name
	Tokens   uint32 `json:"tokens"`    // admitted, less what has leaked
	InFlight uint32 `json:"in_flight"` // requests
}

// Held is what a process and those that it replaced take of one client's limits.
type Held struct {
	Use
	Unheard uint32 `json:"unheard"` // tokens that no peer knows yet
}

// Reason says why a request is refused.
type Reason uint8

// The reasons. Admitted is none.
const (
	Admitted Reason = iota
	Tokens
	InFlight
)

// Reasons names them.
var Reasons = [...]string{Admitted: "admitted", Tokens: "tokens", InFlight: "in_flight"}

func (r Reason) String() string { return Reasons[r] }

// Standing is a client's use of its limits over the fleet. A limit of 0 is none; tokens are only
// counted against a limit.
type Standing struct {
	Totals
	TokenLimit, TokensUsed, TokensLeft int64
	TokensReset                        time.Duration // until the tokens used have leaked
	Limit, InFlight, Left              int           // requests
	Wait                               time.Duration // until the refused request may be admitted; 0 if it was
}

// Totals are of this node's requests since the client was first listed.
type Totals struct {
	Requests uint64 // admitted
	Refused  [len(Reasons)]uint64
	Own      int // requests in flight
}

const (
	// leastWindow covers gossip's flush and a slow loop.
	leastWindow = 100 * time.Millisecond
	minute      = float64(time.Minute)
	// resend corrects what peers' shares of the leak differ by.
	resend = time.Second
	// forgetOrigin is longer than the tokens of a limit take to leak.
	forgetOrigin = 10 * time.Minute
	// Succession is longer than a process takes to replace another one.
	Succession = 15 * time.Second
	// No name of a node has parentheses.
	predecessorOrigin = "(predecessor)"
	successorOrigin   = "(successor)"
	maxUse            = math.MaxUint32
)

// NewMeter returns a meter of a node alone, without clients.
func NewMeter() *Meter {
	m := &Meter{began: time.Now(), byKey: make(map[uint32]*account), origins: make(map[string]*origin)}
	m.accounts.Store(&map[*Client]*account{})
	m.fleet.Store(&Fleet{Heard: 1, Nodes: 1})
	return m
}

// Now is a steady clock: steps of the wall clock must not make tokens leak.
func (m *Meter) Now() time.Duration { return time.Since(m.began) }

// Adopt replaces the clients. Names that stay keep their use.
func (m *Meter) Adopt(b *Book) {
	m.mu.Lock()
	defer m.mu.Unlock()
	accounts, byKey := make(map[*Client]*account, len(b.Clients)), make(map[uint32]*account, len(b.Clients))
	for _, c := range b.Clients {
		key := NameKey(c.Name)
		a := m.byKey[key]
		if a == nil {
			a = &account{key: key}
		}
		a.limit(c)
		accounts[c], byKey[key] = a, a
	}
	m.byKey = byKey
	m.accounts.Store(&accounts)
}

// NameKey is the number by which nodes name a client.
func NameKey(name string) uint32 { return uint32(xxh3.HashString(name)) }

// SetFleet takes effect with the next request.
func (m *Meter) SetFleet(f Fleet) { m.fleet.Store(&f) }

// Fleet returns what SetFleet set last.
func (m *Meter) Fleet() Fleet { return *m.fleet.Load() }

// share is the part of the limits that the heard nodes may use together.
func (f *Fleet) share() float64 { return min(1, float64(f.Heard)/float64(max(f.Nodes, f.Heard, 1))) }

func (f *Fleet) window() time.Duration { return max(2*f.Staleness, leastWindow) }

// account is one client's use. The tokens leak at the limit's rate, from all origins in proportion,
// so that origins can be summed and replaced.
type account struct {
	key    uint32
	listed atomic.Bool // in Meter.active

	mu         sync.Mutex // guards the rest
	perMinute  float64    // tokens; 0: no limit
	most       int        // requests; 0: no limit
	at         time.Duration
	own        use
	peers      []peerUse
	total      use     // of all
	output     float64 // mean of the answers; output tokens
	recent     recent
	sent       Use
	sentAt     time.Duration
	unreported bool
	unheard    float64 // tokens admitted since the last report, by this process or those that it replaces
	totals     Totals
}

type use struct {
	tokens   float64
	inFlight int
}

type peerUse struct {
	origin *origin
	use
	heard float64 // tokens of a predecessor that peers know from itself
	turn  uint64
}

// origin is another process: of another node, or this node's former one.
type origin struct {
	process uint64
	turn    uint64 // of its full reports
	gone    time.Duration
	dropped bool
	leaving bool // it left; its requests count until another process takes its place
	own     bool // of this node: peers learn of its requests from this process
}

// recent is this node's own use that peers may not know: since the window began, and in the window
// before.
type recent struct {
	began       time.Duration
	before, now use
}

func (r *recent) tokens() float64 { return r.before.tokens + r.now.tokens }
func (r *recent) requests() int   { return r.before.inFlight + r.now.inFlight }

// turn begins a new window. While a peer is silent the window goes on: own use must not add up.
func (r *recent) turn(f *Fleet, now time.Duration) {
	age := now - r.began
	if age < f.window() || f.Silent {
		return
	}
	r.before, r.now, r.began = use{r.now.tokens, max(r.now.inFlight, 0)}, use{}, now
	if age >= 2*f.window() {
		r.before = use{}
	}
}

func (a *account) limit(c *Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.perMinute, a.most = float64(c.TokensPerMinute), c.InFlight
	if a.perMinute == 0 {
		a.own.tokens = 0
		for i := range a.peers {
			a.peers[i].tokens = 0
		}
	}
	a.sumLocked()
}

// sumLocked forgets the origins that use nothing, and sums the others.
func (a *account) sumLocked() {
	a.peers = slices.DeleteFunc(a.peers, func(p peerUse) bool { return p.use == use{} })
	a.total = a.own
	for i := range a.peers {
		a.total.tokens += a.peers[i].tokens
		a.total.inFlight += a.peers[i].inFlight
	}
}

func (a *account) leakLocked(f *Fleet, now time.Duration) {
	passed := now - a.at
	if passed <= 0 {
		return
	}
	a.at = now
	if a.total.tokens == 0 {
		return
	}
	keep := max(0, 1-a.perMinute*f.share()*float64(passed)/minute/a.total.tokens)
	a.own.tokens *= keep
	a.unheard *= keep
	for i := range a.peers {
		a.peers[i].tokens *= keep
		a.peers[i].heard *= keep
	}
	a.sumLocked()
}

// Reservation is what an admitted request holds of its client's limits. Release must be called once.
// The zero value holds nothing.
type Reservation struct {
	account        *account
	prompt, output float64
	at             time.Duration
}

// Reserve admits a request of an adopted client, or says why not. prompt is an estimate; output is
// the most that the request asks for, 0 if it does not say: then the mean of the client's answers
// counts. A client that is not adopted has no limits.
func (m *Meter) Reserve(c *Client, prompt, output int, now time.Duration) (r Reservation, why Reason) {
	a := (*m.accounts.Load())[c]
	if a == nil {
		return r, Admitted
	}
	f := m.fleet.Load()
	a.mu.Lock()
	a.leakLocked(f, now)
	a.recent.turn(f, now)
	r = Reservation{account: a, prompt: float64(prompt), output: float64(output), at: now}
	if output <= 0 {
		r.output = a.output
	}
	if why = a.judgeLocked(f, r.prompt+r.output); why != Admitted {
		a.totals.Refused[why]++
		a.mu.Unlock()
		return Reservation{}, why
	}
	if a.perMinute == 0 {
		r.prompt, r.output = 0, 0
	}
	a.takeLocked(use{r.prompt + r.output, 1})
	a.recent.now.tokens += r.prompt + r.output
	a.recent.now.inFlight++
	a.totals.Requests++
	a.mu.Unlock()
	if !a.listed.Load() {
		m.list(a)
	}
	return r, Admitted
}

func (m *Meter) list(a *account) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listLocked(a)
}

func (m *Meter) listLocked(a *account) {
	if a.listed.CompareAndSwap(false, true) {
		m.active = append(m.active, a)
	}
}

// judgeLocked lets this process use its part of what is left, or one request, until the others have heard.
func (a *account) judgeLocked(f *Fleet, tokens float64) Reason {
	nodes := float64(max(f.Heard, 1) * max(f.Processes, 1))
	if a.most > 0 {
		left, own := f.mostInFlight(a.most)-a.total.inFlight, a.recent.requests()
		if left < 1 || own > 0 && float64(own+1)*nodes > float64(left+own) {
			return InFlight
		}
	}
	if a.perMinute > 0 {
		capacity, own := a.perMinute*f.share(), a.recent.tokens()
		left := capacity - a.total.tokens
		whole := tokens > capacity && a.total.tokens == 0 // it would never fit
		if !whole && (tokens > left || own > 0 && (own+tokens)*nodes > left+own) {
			return Tokens
		}
	}
	return Admitted
}

// mostInFlight leaves every part of a divided fleet at least one request.
func (f *Fleet) mostInFlight(most int) int { return max(1, int(float64(most)*f.share())) }

func (a *account) takeLocked(u use) {
	u.tokens = max(u.tokens, -a.own.tokens)
	a.own.tokens += u.tokens
	a.unheard = max(0, a.unheard+u.tokens)
	a.own.inFlight += u.inFlight
	a.total.tokens = max(0, a.total.tokens+u.tokens)
	a.total.inFlight += u.inFlight
	a.unreported = true
}

// Spent is what an ended request used.
type Spent struct {
	// Prompt and Output are the engine's counts, in tokens; -1 if unknown: what was reserved counts.
	Prompt, Output int
}

// Release gives back what the request holds and did not spend. Further calls do nothing.
func (m *Meter) Release(r *Reservation, s Spent, now time.Duration) {
	a := r.account
	if a == nil {
		return
	}
	prompt, output, at := r.prompt, r.output, r.at
	*r = Reservation{}
	f := m.fleet.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leakLocked(f, now)
	a.recent.turn(f, now)
	change := use{inFlight: -1}
	if a.perMinute > 0 {
		if s.Prompt >= 0 {
			change.tokens += float64(s.Prompt) - prompt
		}
		if s.Output >= 0 {
			change.tokens += float64(s.Output) - output
		}
	}
	a.takeLocked(change)
	a.recent.now.inFlight--
	if at >= a.recent.began { // peers have not heard of it
		a.recent.now.tokens = max(0, a.recent.now.tokens+change.tokens)
	}
	switch {
	case s.Output <= 0:
	case a.output == 0:
		a.output = float64(s.Output)
	default:
		a.output += (float64(s.Output) - a.output) / 16
	}
}

// Standing returns a client's use, and how long a request of so many tokens that was refused for why
// must wait.
func (m *Meter) Standing(c *Client, tokens int, why Reason, now time.Duration) (s Standing) {
	a := (*m.accounts.Load())[c]
	if a == nil {
		return s
	}
	f := m.fleet.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leakLocked(f, now)
	s = Standing{TokenLimit: int64(a.perMinute), TokensUsed: int64(a.total.tokens + 0.5), Limit: a.most, InFlight: a.total.inFlight, Totals: a.totals}
	s.Own = a.own.inFlight
	if a.most > 0 {
		s.Left = max(0, f.mostInFlight(a.most)-s.InFlight)
	}
	capacity := a.perMinute * f.share()
	leak := func(tokens float64) time.Duration { return time.Duration(tokens / capacity * minute) }
	if capacity > 0 {
		s.TokensLeft, s.TokensReset = max(0, int64(capacity-a.total.tokens)), leak(a.total.tokens)
	}
	switch {
	case why == Admitted:
	case why == InFlight && s.Left == 0:
		s.Wait = time.Second // when requests end is unknown
	default:
		s.Wait = f.window()
	}
	if why == Tokens && capacity > 0 {
		s.Wait = max(s.Wait, leak(min(a.total.tokens, max(0, a.total.tokens+float64(tokens)-capacity))))
	}
	return s
}

// Own appends this node's use of each client that its requests have used lately. Gossip calls it
// at every flush.
func (m *Meter) Own(dst []Use, now time.Duration) []Use {
	f := m.fleet.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.origins {
		if o.leaving && now-o.gone > Succession {
			m.endLocked(o)
		}
	}
	active := m.active[:0]
	for _, a := range m.active {
		u, used := a.report(f, now)
		if used {
			dst, active = append(dst, u), append(active, a)
			continue
		}
		a.listed.Store(false)
		if a.used() { // a request came between
			a.listed.Store(true)
			active = append(active, a)
		}
	}
	clear(m.active[len(active):])
	m.active = active
	return dst
}

// report repeats the last report while only leaking changes the use, which peers compute themselves.
func (a *account) report(f *Fleet, now time.Duration) (u Use, used bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leakLocked(f, now)
	if a.unreported || now-a.sentAt >= resend {
		sum := a.own
		for i := range a.peers {
			if p := &a.peers[i]; p.origin.own {
				sum.tokens += max(0, p.tokens-p.heard)
				sum.inFlight += p.inFlight
			}
		}
		a.sent = sum.of(a.key)
		a.sentAt, a.unreported, a.unheard = now, false, 0
	}
	return a.sent, a.sent.Tokens|a.sent.InFlight != 0
}

func (u Use) use() use { return use{float64(u.Tokens), int(u.InFlight)} }

func (u use) of(client uint32) Use {
	return Use{client, uint32(min(u.tokens+0.5, maxUse)), uint32(u.inFlight)}
}

// HandOn appends what this process and those that it replaced use, for the one that replaces it.
func (m *Meter) HandOn(dst []Held, now time.Duration) []Held { return m.hold(dst, true, now) }

// HandBack appends what all but the processes use that this one replaces, for these: they hear no peers any more.
func (m *Meter) HandBack(dst []Held, now time.Duration) []Held { return m.hold(dst, false, now) }

func (m *Meter) hold(dst []Held, on bool, now time.Duration) []Held {
	f := m.fleet.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.byKey {
		if h := a.held(f, on, now); h.Tokens|h.InFlight != 0 {
			dst = append(dst, h)
		}
	}
	return dst
}

func (a *account) held(f *Fleet, on bool, now time.Duration) Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leakLocked(f, now)
	sum := a.own
	for i := range a.peers {
		if p := &a.peers[i]; p.origin.own == on {
			sum.tokens += p.tokens
			sum.inFlight += p.inFlight
		}
	}
	u := sum.of(a.key)
	return Held{u, min(u.Tokens, use{tokens: a.unheard}.of(a.key).Tokens)}
}

// Predecessor takes all that the process uses that this one replaces. What it had reported when it first says so, its
// former peers know.
func (m *Meter) Predecessor(uses []Held, now time.Duration) {
	f := m.fleet.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.originLocked(predecessorOrigin, 0, now)
	first := !o.own
	o.own = true
	o.turn++
	for _, u := range uses {
		a := m.byKey[u.Client]
		if a == nil {
			continue
		}
		a.setPeer(o, u.use(), f, now)
		if first {
			a.changePeer(o, func(p *peerUse) {
				p.heard = max(0, p.tokens-float64(u.Unheard))
				a.unheard = max(0, a.unheard-p.heard)
			})
		}
		m.listLocked(a)
	}
	m.endUnsaidLocked(o)
}

// Successor takes what the process that replaces this one uses, and its peers, which this one no longer hears.
func (m *Meter) Successor(uses []Held, now time.Duration) {
	all := make([]Use, len(uses))
	for i, u := range uses {
		all[i] = u.Use
	}
	m.mu.Lock()
	if m.origins[successorOrigin] == nil {
		for _, o := range m.origins {
			if !o.own {
				o.turn++
				m.endUnsaidLocked(o)
			}
		}
	}
	m.mu.Unlock()
	m.Peer(successorOrigin, 0, all, true, now)
}

// PredecessorEnded ends the requests in flight of the process that this one replaces.
func (m *Meter) PredecessorEnded(now time.Duration) { m.DropPeer(predecessorOrigin, false, now) }

func (a *account) used() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unreported
}

// Peer takes a peer process's changed use or, if full, all of it. Clients unknown here are ignored.
func (m *Meter) Peer(name string, process uint64, changed []Use, full bool, now time.Duration) {
	f := m.fleet.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.originLocked(name, process, now)
	if full {
		o.turn++
	}
	for _, u := range changed {
		if a := m.byKey[u.Client]; a != nil {
			a.setPeer(o, u.use(), f, now)
		}
	}
	if full {
		m.endUnsaidLocked(o)
	}
}

// endUnsaidLocked ends what the origin's latest full report does not contain.
func (m *Meter) endUnsaidLocked(o *origin) {
	for _, a := range m.byKey {
		a.changePeer(o, func(p *peerUse) {
			if p.turn != o.turn {
				p.use = use{}
			}
		})
	}
}

// originLocked keeps the tokens of a former process, which leak like others.
func (m *Meter) originLocked(name string, process uint64, now time.Duration) *origin {
	o := m.origins[name]
	if o != nil && o.process == process {
		o.dropped, o.leaving = false, false
		return o
	}
	if o != nil {
		m.endLocked(o)
	}
	maps.DeleteFunc(m.origins, func(_ string, old *origin) bool { return old.dropped && now-old.gone > forgetOrigin })
	o = &origin{process: process}
	m.origins[name] = o
	return o
}

// DropPeer ends a peer's requests in flight. Its tokens leak: they were admitted. A node that left has no
// requests, unless another process takes its place: then they count until that has said what it uses.
func (m *Meter) DropPeer(name string, left bool, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.origins[name]; o != nil {
		o.dropped, o.gone = true, now
		if o.leaving = left; !left {
			m.endLocked(o)
		}
	}
}

// PeerReturned says that a peer has said what it uses, maybe nothing.
func (m *Meter) PeerReturned(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.origins[name]; o != nil && o.leaving {
		m.endLocked(o)
	}
}

func (m *Meter) endLocked(o *origin) {
	o.leaving = false
	for _, a := range m.byKey {
		a.changePeer(o, func(p *peerUse) { p.inFlight = 0 })
	}
}

func (a *account) changePeer(o *origin, change func(*peerUse)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.placeLocked(o); i >= 0 {
		before := a.peers[i].inFlight
		change(&a.peers[i])
		a.unreported = a.unreported || o.own && before != a.peers[i].inFlight
		a.sumLocked()
	}
}

func (a *account) setPeer(o *origin, u use, f *Fleet, now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leakLocked(f, now)
	if a.perMinute == 0 {
		u.tokens = 0
	}
	i := a.placeLocked(o)
	if i < 0 {
		i = len(a.peers)
		a.peers = append(a.peers, peerUse{origin: o})
	}
	if o.own {
		a.unreported = a.unreported || u.inFlight != a.peers[i].inFlight
		a.unheard += max(0, u.tokens-a.peers[i].tokens)
	}
	a.peers[i].use, a.peers[i].turn = u, o.turn
	a.sumLocked()
}

// placeLocked returns the place of an origin among the peers, -1 if it uses nothing.
func (a *account) placeLocked(o *origin) int {
	return slices.IndexFunc(a.peers, func(p peerUse) bool { return p.origin == o })
}
