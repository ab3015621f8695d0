package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

type count struct {
	heard, ok, failing int
	reason             Reason
	rumour             Reason // of an abstaining reporter
}

func (c *count) majority(reporters int) bool { return 2*c.heard > reporters }

// count lets a reporter that only saw requests fail abstain: the requests may be at fault.
func (b *Board) count(e *watched, now time.Time) (c count) {
	var why [reasons]int
	vote := func(ok, failing, passive bool, reason Reason) {
		switch {
		case failing && passive:
			c.rumour = reason
			return
		case failing:
			c.failing++
			why[min(reason, reasons-1)]++
		case ok:
			c.ok++
		default:
			return
		}
		c.heard++
	}
	for _, name := range e.reporters {
		if name == b.cfg.Self {
			vote(b.probedLately(&e.own, now), e.own.failing(), !e.own.bad, e.own.reason())
			continue
		}
		for i := range e.peers {
			if p := &e.peers[i]; p.origin == name {
				vote(p.OK, p.Failing, p.Passive, p.Reason)
			}
		}
	}
	for r := range why {
		if why[r] > why[c.reason] {
			c.reason = Reason(r)
		}
	}
	return c
}

// Avoid appends the engines to avoid, on failed requests alone at most one engine in ejectShare,
// the policy's ejections included.
func (b *Board) Avoid(dst []uint32, now time.Time) []uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := max(len(b.engines)/ejectShare, 1)
	var doubtful []uint32
	for key, e := range b.engines {
		avoid, byRequests := b.avoid(e, now)
		switch {
		case avoid && !byRequests:
			dst = append(dst, key)
		case e.own.passive:
			room-- // the policy leaves it alone
		case avoid:
			doubtful = append(doubtful, key)
		}
	}
	slices.Sort(doubtful)
	return append(dst, doubtful[:max(min(room, len(doubtful)), 0)]...)
}

// avoid judges one engine; byRequests: failed requests are the only evidence. Own ones do not
// count, since the policy ejects for them. A peer's report counts for the grace period, then unless
// outvoted. An answered own request, not a probe, refutes a report of failed requests.
func (b *Board) avoid(e *watched, now time.Time) (avoid, byRequests bool) {
	if e.own.bad || e.Down && e.Ours {
		return true, false // agreed by the fleet until it is up again
	}
	probed, passive := 0, false
	var newest time.Time
	for i := range e.peers {
		p := &e.peers[i]
		if !p.Failing || !slices.Contains(b.nodes, p.origin) {
			continue
		}
		switch {
		case p.Passive:
			passive = passive || !e.own.answeredAt.After(p.failingAt)
		case e.mine && e.own.fails == 0 && e.own.began.After(p.failingAt) && e.own.probed.After(e.own.began):
			// This node's probes have succeeded since.
		default:
			probed++
			if p.failingAt.After(newest) {
				newest = p.failingAt
			}
		}
	}
	if probed > 0 && (now.Sub(newest) < grace || probed > b.count(e, now).ok) {
		return true, false
	}
	return passive, passive
}

type Proposal struct {
	Down  bool // else up
	Names []string
	// Versions are those of Names as judged; the store skips engines that changed since.
	Versions []uint64
	Reason   string
	// Renew lists restarted engines with the generation that ended.
	Renew []Generation
}

type Generation struct {
	Name string
	From uint32
}

const (
	// upAfter is how long most reporters must have found the engine healthy.
	upAfter = 500 * time.Millisecond
	// A relapse is a failure within relapseWithin of a return. After more than forgiven relapses an
	// engine stays down for firstHold, doubling to lastHold.
	relapseWithin = 5 * time.Minute
	forgiven      = 2
	firstHold     = 30 * time.Second
	lastHold      = 10 * time.Minute
	// patience is how long a proposal may take before it is repeated.
	patience = 3 * time.Second
	// writeEvery and writeBurst keep health from filling the raft log.
	writeEvery = time.Second
	writeBurst = 3
)

type written struct {
	downAt, upAt time.Time // as this node saw it
	generation   uint32    // when it went down; 0: before this node knew it
	relapses     int
	hold         time.Duration
	contentSince time.Time // since when most reporters find it healthy
	proposedAt   time.Time
}

func (w *written) note(was, is *Backend, now time.Time) {
	if was.Down == is.Down {
		return
	}
	w.proposedAt, w.contentSince = time.Time{}, time.Time{}
	if !is.Down {
		w.upAt = now
		return
	}
	w.downAt, w.generation = now, is.Generation
	switch {
	case !is.Ours:
	case w.upAt.IsZero() || now.Sub(w.upAt) > relapseWithin:
		w.relapses, w.hold = 0, 0
	default:
		if w.relapses++; w.relapses > forgiven {
			w.hold = min(max(2*w.hold, firstHold), lastHold)
		}
	}
}

type pacer struct {
	tokens float64
	at     time.Time
}

func (p *pacer) take(now time.Time) bool {
	if p.at.IsZero() {
		p.tokens = writeBurst
	} else {
		p.tokens = min(writeBurst, p.tokens+now.Sub(p.at).Seconds()/writeEvery.Seconds())
	}
	p.at = now
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}

// Proposals returns the uncommitted decisions of most reporters, for the leader. It takes down at
// most half of the engines: beyond that the network is the likelier cause.
func (b *Board) Proposals(now time.Time) []Proposal {
	b.mu.Lock()
	defer b.mu.Unlock()
	downs := make(map[Reason]*Proposal)
	up := &Proposal{}
	room := len(b.engines) / 2
	for _, e := range b.engines {
		if e.Down {
			room--
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(b.engines), func(x, y *watched) int { return strings.Compare(x.Name, y.Name) }) {
		c := b.count(e, now)
		most := c.majority(len(e.reporters))
		down := most && 2*c.failing > c.heard
		if !(most && 2*c.ok > c.heard) {
			e.written.contentSince = time.Time{}
		} else if e.written.contentSince.IsZero() {
			e.written.contentSince = now
		}
		if !e.written.proposedAt.IsZero() && now.Sub(e.written.proposedAt) < patience {
			continue
		}
		switch {
		case !e.Down && down && room > 0:
			room--
			p := downs[c.reason]
			if p == nil {
				p = &Proposal{Down: true, Reason: fmt.Sprintf("%s%s, say %d of %d nodes", Prefix, c.reason, c.failing, c.heard)}
				downs[c.reason] = p
			}
			p.Names, p.Versions = append(p.Names, e.Name), append(p.Versions, e.Version)
		case e.Down && e.Ours && e.written.mayRise(now):
			up.Names = append(up.Names, e.Name)
			if e.gone() {
				// Another node may have ended this generation.
				up.Renew = append(up.Renew, Generation{e.Name, cmp.Or(e.written.generation, e.Generation)})
			}
		}
	}
	var out []Proposal
	for r := range reasons {
		if p := downs[r]; p != nil {
			out = append(out, *p)
		}
	}
	if len(up.Names) > 0 {
		up.Reason = Prefix + "answers again"
		out = append(out, *up)
	}
	return b.paced(out, now)
}

func (w *written) mayRise(now time.Time) bool {
	return !w.contentSince.IsZero() && now.Sub(w.contentSince) >= upAfter && now.Sub(w.downAt) >= w.hold
}

func (b *Board) paced(list []Proposal, now time.Time) []Proposal {
	for i := range list {
		if !b.writing.take(now) {
			return list[:i]
		}
		for _, e := range b.engines {
			if slices.Contains(list[i].Names, e.Name) {
				e.written.proposedAt = now
			}
		}
	}
	return list
}
