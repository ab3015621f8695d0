package member

import (
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Values of the log field "event", beside those of Kind.
const (
	EventRefused     = "node_refused"
	EventKeysChanged = "keys_changed"
)

const (
	maxRefusals  = 64
	refusalPause = time.Minute // between log lines of equal refusals
)

// Refusal is a refused node and the reason.
type Refusal struct {
	Addr  string // the source, or of relayed metadata the node's own
	Name  string
	Err   error
	At    time.Time
	Count int // of equal refusals

	logged time.Time
}

func (r *Refusal) equal(x Refusal) bool {
	return r.Addr == x.Addr && r.Name == x.Name && r.Err.Error() == x.Err.Error()
}

// The latest is last. Safe for concurrent use.
type refusals struct {
	log zerolog.Logger

	mu    sync.Mutex
	all   []Refusal
	total uint64
}

// addr has no ephemeral port, so that attempts count together.
func (l *List) refused(addr, name string, err error) {
	r := &l.refusals
	x := Refusal{Addr: addr, Name: name, Err: err, At: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if i := slices.IndexFunc(r.all, x.equal); i >= 0 {
		x.Count, x.logged = r.all[i].Count, r.all[i].logged
		r.all = slices.Delete(r.all, i, i+1)
	} else if len(r.all) >= maxRefusals {
		r.all = slices.Delete(r.all, 0, 1)
	}
	x.Count++
	if x.At.Sub(x.logged) >= refusalPause {
		x.logged = x.At
		r.log.Warn().Str("event", EventRefused).Str("addr", addr).Str("peer", name).Err(err).Msg("node refused")
	}
	r.all = append(r.all, x)
}

// Refusals returns the latest refusals, at most 64, the latest last.
func (l *List) Refusals() []Refusal {
	l.refusals.mu.Lock()
	defer l.refusals.mu.Unlock()
	return slices.Clone(l.refusals.all)
}
