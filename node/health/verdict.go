package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// count is how an engine's reporters vote.
type count struct {
	heard, ok, failing int
	reason             Reason // of most that say it fails
	rumour             Reason // of one that abstains, since requests alone say so
}

// majority says whether most of the reporters have been heard.
func (c *count) majority(reporters int) bool { return 2*c.heard > reporters }

// count counts the fresh reports of the engine's reporters, this node's own
// among them. Who finds it failing by requests alone abstains: three answers of
// 500 within a moment may be three bad requests, and to leave the engine alone, as
// every node does then, is enough.
func (b *Board) count(e *engine, now time.Time) (c count) {
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

// Avoid appends the keys of the engines to be left alone because probes, or
// other nodes, say that they fail. Of those of which only failed requests say so it is
// one in ejectShare at most, this node's own included: requests may be at fault themselves.
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

// avoid decides that, and says whether failed requests are all that speaks for it. Own
// failed requests do not count here: the policy answers those by leaving the engine alone
// and trying it now and then.
//
// Another node's word counts at once, for as long as the reporters need to see
// for themselves. After that it counts unless it is outvoted, so that a node
// whose own network is at fault costs the fleet no engine. A word by failed
// requests is not outvoted by probes, which know nothing of requests, but
// by an answer this node has had since.
func (b *Board) avoid(e *engine, now time.Time) (avoid, byRequests bool) {
	if e.own.bad || e.Down && e.Ours {
		return true, false // what is down by the fleet's own word, everybody goes by until it is up
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
			// This node has asked since, and was answered.
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

// Proposal is something the fleet should write down.
type Proposal struct {
	Down  bool // else up
	Names []string
	// Versions, for those to be taken down, are what they were judged by: of one that
	// has been changed since, somebody knows more.
	Versions []uint64
	Reason   string
	// Renew names those of Names that have surely been restarted, with the
	// generation that ended: what their caches held is gone.
	Renew []Generation
}

// Generation is one engine's.
type Generation struct {
	Name string
	From uint32 // the one that has ended
}

const (
	// upAfter is how long most reporters must have been content.
	upAfter = 500 * time.Millisecond
	// relapseWithin an engine that goes down again has relapsed. After more than
	// forgiven relapses, which an operator may need to get it right, it flaps: it is kept
	// down for firstHold, and each time twice as long, up to lastHold.
	relapseWithin = 5 * time.Minute
	forgiven      = 2
	firstHold     = 30 * time.Second
	lastHold      = 10 * time.Minute
	// patience is how long a proposal may take to show before it is made again.
	patience = 3 * time.Second
	// writeEvery and writeBurst bound the proposals, each for all engines of one
	// kind: health must not fill the log.
	writeEvery = time.Second
	writeBurst = 3
)

// written is the history of what the fleet wrote down about an engine.
type written struct {
	downAt, upAt time.Time // as this node saw it
	generation   uint32    // when it went down; 0: it has been down since before this node knew it
	relapses     int
	hold         time.Duration
	contentSince time.Time // most reporters are, since
	proposedAt   time.Time
}

// note follows a change of state.
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

// pacer bounds the proposals.
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

// Proposals is for the node that leads: what most of the reporters agree on and
// the fleet has not written down yet. At most half of the engines are taken
// down: if more fail, it is rather the network, and every node avoids what
// fails anyway.
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
	for _, e := range b.sorted() {
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
				// Whoever noticed the restart meanwhile has ended that one, too.
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

// mayRise says whether an engine that is down may come back.
func (w *written) mayRise(now time.Time) bool {
	return !w.contentSince.IsZero() && now.Sub(w.contentSince) >= upAfter && now.Sub(w.downAt) >= w.hold
}

// paced keeps what may be written now.
func (b *Board) paced(list []Proposal, now time.Time) []Proposal {
	for i := range list {
		if !b.writing.take(now) {
			return list[:i]
		}
		for _, name := range list[i].Names {
			for _, e := range b.engines {
				if e.Name == name {
					e.written.proposedAt = now
				}
			}
		}
	}
	return list
}

// sorted lists the engines by name, so that proposals are the same whoever makes them.
func (b *Board) sorted() []*engine {
	out := make([]*engine, 0, len(b.engines))
	for _, e := range b.engines {
		out = append(out, e)
	}
	slices.SortFunc(out, func(x, y *engine) int {
		if x.Name < y.Name {
			return -1
		}
		return 1
	})
	return out
}
