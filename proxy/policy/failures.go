package policy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// ejectShare: failed requests, but not refused connections, eject at most one in so many
// backends of a pool, and at least one.
const ejectShare = 5

// failed reports whether a failure can count; proxy/books/DESIGN.md, "Failures", has the rules.
func (r *Router) failed(e *books.Engine, o *Outcome, picked, now prefixtree.Time) bool {
	if o.Failed != books.Connect && o.Request == 0 {
		return false
	}
	r.ejecting.Lock()
	defer r.ejecting.Unlock()
	if o.Failed != books.Connect && len(o.FailedBefore) > 0 {
		t := r.table.Load()
		for _, b := range o.FailedBefore {
			if before := t.engine(b); before != nil {
				before.Absolve(o.Request)
			}
		}
		return true
	}
	e.Fail(o.Failed, o.Request, o.Failed == books.Connect || r.mayEject(e), picked, now)
	return true
}

// mayEject reports whether failed requests may eject one more backend. Needs ejecting.
func (r *Router) mayEject(e *books.Engine) bool {
	for _, p := range r.table.Load().pools {
		if p.entryOf(e.ID()) < 0 {
			continue
		}
		n := 0
		for i := range p.entries {
			if other := p.entries[i].engine; other != e && other.EjectedByRequests() {
				n++
			}
		}
		if n >= max(len(p.entries)/ejectShare, 1) {
			return false
		}
	}
	return true
}

// answered notes a sign of life for a request that was picked at that time. One that probably restarted begins slowly.
func (r *Router) answered(e *books.Engine, picked, now prefixtree.Time) {
	if e.Answered(picked, now) {
		r.begins(e, now)
	}
}

// SetReported sets whether probes or other nodes report the backend as failing, which avoids it. With the
// report own ejections end, except for 5xx, and after more than a second slow start begins.
func (r *Router) SetReported(b prefixtree.Backend, failing bool, now prefixtree.Time) {
	if e := r.table.Load().engine(b); e != nil && e.SetReported(failing, now) {
		r.begins(e, now)
	}
}
