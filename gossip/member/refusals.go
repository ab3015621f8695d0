package member

import (
	"slices"
	"sync"
	"time"
)

const (
	maxRefusals = 64
	// refusalPause is the time between log lines of equal refusals.
	refusalPause = time.Minute
)

// refusals holds the latest refusals, the newest last. Safe for concurrent use.
type refusals struct {
	mu     sync.Mutex
	all    []Refusal
	logged map[string]time.Time
	total  uint64
}

// add reports whether to log the refusal.
func (r *refusals) add(x Refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if r.logged == nil {
		r.logged = make(map[string]time.Time)
	}
	key := refusalKey(x)
	x.Count = 1
	if i := slices.IndexFunc(r.all, func(y Refusal) bool { return refusalKey(y) == key }); i >= 0 {
		x.Count += r.all[i].Count
		r.all = slices.Delete(r.all, i, i+1)
	} else if len(r.all) >= maxRefusals {
		delete(r.logged, refusalKey(r.all[0]))
		r.all = slices.Delete(r.all, 0, 1)
	}
	r.all = append(r.all, x)
	if last, ok := r.logged[key]; ok && x.At.Sub(last) < refusalPause {
		return false
	}
	r.logged[key] = x.At
	return true
}

func refusalKey(x Refusal) string { return x.Addr + " " + x.Name + " " + x.Err.Error() }

func (r *refusals) list() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// refused records and logs a refusal. addr has no ephemeral port, so that attempts count together.
func (l *List) refused(addr, name string, err error) {
	if !l.refusals.add(Refusal{Addr: addr, Name: name, Err: err, At: time.Now()}) {
		return
	}
	if skipped, ok := l.refusalLog.allow(); ok {
		e := l.log.Warn().Str("addr", addr).Err(err)
		if name != "" {
			e = e.Str("peer", name)
		}
		if skipped > 0 {
			e = e.Int("skipped", skipped)
		}
		e.Msg("node refused")
	}
}
