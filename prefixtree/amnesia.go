package prefixtree

import "math"

// An engine that has lost its cache shows it plainly only while nothing of a prompt is cached. Where prompts have a head in
// common, the first request puts that back, and all others find it and miss the rest, as after an eviction. What tells the two
// apart is that a cache that evicts by use holds everything used after what it still holds: a block that is missing, although one
// that lay further back was found not long ago, was not evicted.

const (
	// certainty is by how much a miss must lie nearer than what was found, to speak for a lost cache and not for inaccurate
	// counting of what came in between.
	certainty = 4

	// doubtLimit is how many misses that are no evictions are passed over in a row, until they are taken for such after all:
	// an engine may really hold less than it did.
	doubtLimit = 8

	// doubtFor, ms, is how far apart such misses may lie to have one cause.
	doubtFor = 2 * 60_000
)

// proof is how far back a block was found in the cache, in distinct blocks touched since. It fades: requests that run take room,
// too, now more, now less.
type proof struct {
	displaced float64
	at        Time
}

func (p *proof) value(now Time) float64 {
	return p.displaced * math.Exp2(-float64(max(0, now-p.at))/evidenceHalfLife)
}

func (p *proof) add(displaced float64, now Time) {
	if displaced >= p.value(now) {
		*p = proof{displaced, now}
	}
}

// gap is what a count that falls short of a trail says: blocks down to head were in the cache, the one at depth gone was not.
// Between them lies what the count's rounding leaves open.
type gap struct {
	head, gone int
	headAt     Time // last touch of the block at head, 0 if there is none
	trailStep       // of the block at gone
}

// gap returns what a short count says; steps younger than unsettled, ms, say nothing. ok is false if nothing is left.
func (tr *Trail) gap(cached int, unsettled int64) (g gap, ok bool) {
	slack := 0
	if cached > 0 {
		slack = 1 + int(2*countSlack*float64(cached))
	}
	g.head, g.gone = max(min(cached, 1), cached-slack), min(tr.depth(), cached+slack+1)
	if g.head > 0 {
		g.headAt = tr.at(g.head)
	}
	for _, step := range tr.steps[:tr.n] {
		if step.depth < g.gone {
			continue
		}
		if int64(tr.recorded-step.at) >= unsettled {
			g.trailStep = step
			return g, true
		}
		if cached > 0 {
			return g, false // what lies deeper is missing with it
		}
	}
	return g, false
}

// misses are those in a row that are no evictions. The zero value is none.
type misses struct {
	doubts     int   // all of them
	first      Time  // placement of the first
	count      int   // those that speak for a lost cache
	since      Time  // earliest placement of these
	lost       Time  // latest touch of a block that was missing in them
	against    int   // those that do not: what they found is not what others have put back
	head, next block // what the last of them has found and missed, if one has found anything
	gone       [doubtLimit]block
}

// block is one block of a chain.
type block struct {
	depth int
	hash  Hash
}

func (b block) in(chain []Hash) bool {
	return b.depth > 0 && b.depth <= len(chain) && chain[b.depth-1] == b.hash
}

// add counts a miss as a sign of a lost cache, if it is one more: another prompt's, which has found no more than what others have
// put back since.
func (m *misses) add(g *gap, chain []Hash, recorded Time) {
	for _, gone := range m.gone[:m.count] {
		if gone.in(chain) {
			return // perhaps it just has not been computed yet
		}
	}
	gone := block{g.gone, chain[g.gone-1]}
	if g.head > 0 {
		// As far as the one before, and no further than it has in common with that.
		same := m.head.in(chain) && abs(m.head.depth-g.head) <= 1 && !m.next.in(chain)
		putBack := g.headAt > max(g.at, m.lost)
		first := m.head == block{}
		m.head, m.next = block{g.head, chain[g.head-1]}, gone
		if !putBack && !same {
			if !first {
				m.against++
			}
			return
		}
	} else {
		gone = block{len(chain), chain[len(chain)-1]} // the root is everybody's, the end is not
	}
	if m.count == 0 || recorded < m.since {
		m.since = recorded
	}
	m.gone[m.count] = gone
	m.count++
	m.lost = max(m.lost, g.at)
}

func abs(n int) int { return max(n, -n) }

// foundLocked takes in that a request has found all that was expected, down to a block last touched as the step says.
func (l *ledger) foundLocked(step trailStep, recorded Time) {
	l.usage.proof.add(step.displaced, recorded)
	if step.at <= l.misses.lost {
		l.misses = misses{} // it is older than what was lost
	}
}

// impossible says by how much a block lies nearer than an eviction can be, as a factor; 0 if it does not.
func (u *usage) impossible(displaced float64, now Time) float64 {
	found := u.proof.value(now)
	if found < minDisplaced || displaced >= found {
		return 0
	}
	return found / max(displaced, 1)
}

// doubtful says whether a count that falls short is that of an engine which may have lost its cache.
func (t *Tree) doubtful(b Backend, tr *Trail, cached int, now Time) bool {
	g, ok := tr.gap(cached, int64(now-tr.recorded))
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	return ok && l.usage.impossible(g.displaced, tr.recorded) >= certainty
}

// passOverLocked says whether a miss is no evidence of an eviction, and counts what speaks for a lost cache instead. cached falls
// short of the trail.
func (t *Tree) passOverLocked(b Backend, l *ledger, chain []Hash, tr *Trail, cached int, now Time) bool {
	g, ok := tr.gap(cached, int64(now-tr.recorded))
	switch {
	case !ok:
		return false
	case int64(g.at) <= max(t.limits[b].floor.Load(), int64(l.cleared)):
		return true // it went with all the rest
	}
	by := l.usage.impossible(g.displaced, tr.recorded)
	if by == 0 || by < certainty && l.usage.taught {
		return false
	}
	m := &l.misses
	if m.doubts > 0 && tr.recorded-m.first > doubtFor {
		*m = misses{}
	}
	if m.doubts >= doubtLimit {
		*m, l.usage.proof = misses{}, proof{}
		return false
	}
	if m.doubts == 0 {
		m.first = tr.recorded
	}
	m.doubts++
	if by >= certainty && (l.usage.believed == 0 || g.displaced*certainty < l.usage.believed) {
		m.add(&g, chain, tr.recorded)
	}
	return true
}

// surprisedLocked counts one more surprise in a row, by a request recorded at the given time.
func (t *Tree) surprisedLocked(l *ledger, recorded Time) {
	if l.surprises == 0 || recorded < l.surpriseFirst {
		l.surpriseFirst = recorded
	}
	l.surprises++
	t.surprises.Add(1)
}

// amnesiaLocked clears the backend at the third surprise in a row, or at the third miss that speaks for a lost cache. What
// the requests themselves placed was computed by the engine that had lost its cache, so the fence lies just before the
// first of them.
func (t *Tree) amnesiaLocked(b Backend, l *ledger, now Time) bool {
	var first Time
	switch {
	case l.surprises >= surpriseLimit:
		first = l.surpriseFirst
	case l.misses.count-l.misses.against >= surpriseLimit:
		first = l.misses.since
	default:
		return false
	}
	l.surprises, l.misses, l.cleared = 0, misses{}, now
	l.usage.clear()
	t.amnesias.Add(1)
	t.limits[b].raiseFloor(first - 1)
	return true
}
