package prefixtree

import "math"

// If prompts share a head, the first request after a restart puts it back, and the rest is missing
// as after an eviction. But an LRU cache holds everything used after its oldest block: a miss is no
// eviction if an older block was found lately.

const (
	certainty = 4 // a miss so many times nearer than a found block is no inexact counting

	doubtLimit = 8 // such misses in a row are ignored; then the engine really holds less

	doubtFor = 2 * 60_000 // ms; bounds the time between misses of one cause
)

// proof is the furthest distance, in distinct blocks touched since, at which a block was found.
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

// gap: blocks down to head were cached, the one at gone was not.
type gap struct {
	head, gone int
	headAt     Time
	touchStep
}

// gap ignores steps younger than unsettled ms.
func (tr *TouchHistory) gap(cached int, unsettled int64) (g gap, ok bool) {
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
			g.touchStep = step
			return g, true
		}
		if cached > 0 {
			return g, false // blocks below a missing one are missing as well
		}
	}
	return g, false
}

// misses are consecutive misses that no eviction explains.
type misses struct {
	doubts     int
	first      Time
	count      int   // misses that indicate a lost cache
	since      Time  // earliest placement of these
	lost       Time  // latest touch of a block missing in them
	against    int   // misses that found more than other requests put back
	head, next block // what the last one found and missed
	gone       [doubtLimit]block
}

type block struct {
	depth int
	hash  Hash
}

func (b block) in(chain []Hash) bool {
	return b.depth > 0 && b.depth <= len(chain) && chain[b.depth-1] == b.hash
}

// add counts a miss that found only what requests for other prompts put back.
func (m *misses) add(g *gap, chain []Hash, recorded Time) {
	for _, gone := range m.gone[:m.count] {
		if gone.in(chain) {
			return // the same prompt: may not be computed yet
		}
	}
	gone := block{g.gone, chain[g.gone-1]}
	if g.head > 0 {
		// As deep as the last miss, and no deeper than their common part.
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
		gone = block{len(chain), chain[len(chain)-1]} // prompts share the root but not the end
	}
	if m.count == 0 || recorded < m.since {
		m.since = recorded
	}
	m.gone[m.count] = gone
	m.count++
	m.lost = max(m.lost, g.at)
}

func abs(n int) int { return max(n, -n) }

func (l *ledger) foundLocked(step touchStep, recorded Time) {
	l.usage.proof.add(step.displaced, recorded)
	if step.at <= l.misses.lost {
		l.misses = misses{} // a block older than the lost ones is cached
	}
}

// impossible returns how many times nearer than the proof a miss is, 0 if eviction is possible.
func (u *usage) impossible(displaced float64, now Time) float64 {
	found := u.proof.value(now)
	if found < minDisplaced || displaced >= found {
		return 0
	}
	return found / max(displaced, 1)
}

func (t *Tree) doubtful(b Backend, tr *TouchHistory, cached int, now Time) bool {
	g, ok := tr.gap(cached, int64(now-tr.recorded))
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	return ok && l.usage.impossible(g.displaced, tr.recorded) >= certainty
}

// passOverLocked reports whether a miss is no evidence of an eviction, and counts it as a sign.
func (t *Tree) passOverLocked(b Backend, l *ledger, chain []Hash, tr *TouchHistory, cached int, now Time) bool {
	g, ok := tr.gap(cached, int64(now-tr.recorded))
	switch {
	case !ok:
		return false
	case int64(g.at) <= max(t.limits[b].floor.Load(), int64(l.cleared)):
		return true
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

func (t *Tree) surprisedLocked(l *ledger, recorded Time) {
	if l.surprises == 0 || recorded < l.surpriseFirst {
		l.surpriseFirst = recorded
	}
	l.surprises++
	t.surprises.Add(1)
}

// cacheLostLocked clears the backend at the third surprise or sign, up to the first of them,
// because the emptied engine computed what these requests placed.
func (t *Tree) cacheLostLocked(b Backend, l *ledger, now Time) bool {
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
	t.cachesLost.Add(1)
	t.limits[b].raiseFloor(first - 1)
	return true
}
