package prefixtree

const (
	// Steps of the reach towards the displaced volume at which a block was found evicted, or alive. Asymmetric, since
	// believing too little costs far more hits than believing too much.
	shrinkRate = 0.1
	growRate   = 0.3

	// countSlack: a reported count that falls short of the match by less than a block plus this share of the match
	// is no evidence of eviction. Engines never serve the last block from cache, count in their own block size, and the
	// caller converts tokens to blocks by a learned ratio.
	countSlack = 1.0 / 16

	// surpriseLimit is how many responses in a row without any cached block, where a young match was predicted, mean that
	// the engine has lost its cache; young is below a quarter of the horizon.
	surpriseLimit   = 3
	youngPerHorizon = 4
)

// Lesson is what one Learn concluded.
type Lesson struct {
	Predicted int  // leading blocks for which a fact was retained, before the request
	Cached    int  // leading blocks the engine had, as reported, at most the chain; -1 if unknown
	Retracted int  // facts removed because the count contradicts them
	Amnesia   bool // the third sign in a row that the engine has lost its cache: the backend has been cleared
}

// Learn corrects by what the engine says after a request has completed. chain and tr are those of its Record; cached is how
// many leading blocks the engine reports it had in its cache when the request came, -1 if it does not say.
//
// The completed request has put its whole prompt into the cache, so its own placement stands and is touched again (a
// running request pins its blocks; they age from its end). What the count contradicts is what was believed before:
// the horizon moves (see usage), and facts on [cached:] older than the placement are removed. A fact is never created.
//
// With tr nil there was no placement: cached is a truth about the cache now, and every fact on [cached:] goes.
//
// After three surprises in a row, or three misses that no eviction explains, every fact older than the first of them is dead. Safe for
// concurrent use.
func (t *Tree) Learn(b Backend, chain []Hash, tr *Trail, cached int, now Time) Lesson {
	return t.learn(b, chain, tr, cached, now, nil)
}

// learn is Learn; what it changed at anchors is appended to news unless that is nil.
func (t *Tree) learn(b Backend, chain []Hash, tr *Trail, cached int, now Time, news *[]Fact) Lesson {
	if int(b) >= len(t.limits) {
		t.refused.Add(1)
		return Lesson{Cached: -1}
	}
	now = clampTime(now)
	t.advance(now)
	lesson := Lesson{Cached: max(-1, min(cached, len(chain)))}
	if tr == nil {
		lesson.Predicted, lesson.Retracted = t.contradict(b, chain, lesson.Cached, now, news)
		return lesson
	}
	if tr.recorded == 0 {
		return lesson
	}
	lesson.Predicted = tr.depth()
	switch due := t.limits[b].settled(now); {
	case lesson.Cached == 0 && lesson.Predicted > 0, short(lesson.Cached, lesson.Predicted) && t.doubtful(b, tr, lesson.Cached, now):
		// What an engine that lost its cache has computed must not stay older than the fence of amnesiaLocked.
		lesson.Retracted = t.conclude(b, chain, lesson.Cached, tr.settled, now-1, now, news)
	case tr.recorded <= due || short(lesson.Cached, lesson.Predicted):
		lesson.Retracted = t.conclude(b, chain, lesson.Cached, tr.settled, due, now, news)
	default: // nothing to touch and nothing to contradict, as mostly
	}
	if lesson.Cached >= 0 {
		lesson.Amnesia = t.learnAges(b, chain, tr, lesson.Cached, now)
	}
	if lesson.Amnesia && news != nil {
		t.tellFence(news, b)
	}
	return lesson
}

// short says whether a count contradicts the match.
func short(cached, predicted int) bool {
	if cached <= 0 {
		return cached == 0 && predicted > 0
	}
	return float64(predicted-cached) > 1+countSlack*float64(predicted)
}

// contradict removes every fact on [cached:] of the chain on b. held is the depth of the deepest live fact there was.
func (t *Tree) contradict(b Backend, chain []Hash, cached int, now Time, news *[]Fact) (held, retracted int) {
	for i, h := range chain {
		was, _, removed := t.edit(&place{shard: t.shard(uint64(h))}, b, uint64(h), func(e entry) (entry, bool) {
			return e, cached >= 0 && i >= cached && entryTime(e) <= now
		})
		if was != 0 && !t.dead(was, now) {
			held = i + 1
		}
		if removed {
			retracted++
			if news != nil {
				t.tellGone(news, Drop, h, was, now, 0)
			}
		}
	}
	return held, retracted
}

// conclude goes over the chain's facts on b at the end of a request. It touches those up to due. Those up to placed have
// not been touched by its placement, and go if they are on [cached:].
func (t *Tree) conclude(b Backend, chain []Hash, cached int, placed, due, now Time, news *[]Fact) (retracted int) {
	verdict := func(e entry, i int) (to entry, remove bool) {
		switch at := entryTime(e); {
		case at <= placed:
			return e, cached >= 0 && i >= cached
		case at > due || t.dead(e, now):
			return e, false
		}
		return entryAt(e, now), false
	}
	var again Trail // over the blocks touched, for their usage
	again.settled = due
	touched := 0
	note := func(h Hash, e, to entry) {
		if to != e {
			touched++
			again.push(touched, entryTime(e))
			if news != nil {
				t.tell(news, h, e, to, now)
			}
		}
	}
	var a ahead
	for from := 0; from < len(chain); from += lookahead {
		for j := range a.look(t, b, chain[from:]) {
			p, i := &a.places[j], from+j
			if p.entry == 0 && !p.torn {
				continue
			}
			to, remove := verdict(p.entry, i)
			tried := !p.torn && !remove
			if tried && (to == p.entry || p.touch(to, now)) {
				note(chain[i], p.entry, to)
				continue
			}
			was, is, removed := t.edit(p, b, uint64(chain[i]), func(e entry) (entry, bool) { return verdict(e, i) })
			switch {
			case removed:
				retracted++
				if news != nil {
					t.tellGone(news, Drop, chain[i], was, placed, 0)
				}
			case tried && is == to: // perhaps by that touch, which was not certain
				note(chain[i], p.entry, to)
			default:
				note(chain[i], was, is)
			}
		}
	}
	if touched > 0 {
		raise(&t.newest[b], int64(now))
		t.use(b, &again, touched, now)
	}
	return retracted
}

// learnAges moves the horizon by the ages of what was found and of what was missing, and counts what speaks for a lost cache.
func (t *Tree) learnAges(b Backend, chain []Hash, tr *Trail, cached int, now Time) (amnesia bool) {
	predicted := tr.depth()
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	horizon := t.limits[b].horizon(tr.recorded)
	// A block touched only a short while before this request may not have been computed by then, because the request that
	// touched it was queued or running as well. Younger than this request's own stay, a miss proves nothing.
	unsettled := int64(now - tr.recorded)
	missed := short(cached, predicted)

	if found := min(cached, predicted); found > 0 {
		step := tr.step(found)
		l.usage.survived(int64(tr.recorded-step.at), step.displaced, horizon)
		if !missed {
			l.foundLocked(step, tr.recorded)
		}
	}
	// Nothing at all where a settled match was young is rather a restart than an eviction. It is not taken for evidence
	// unless the backend has been cleared for that within the last horizon and it goes on: an engine with a far smaller
	// cache than believed must be learned, too.
	surprise := cached == 0 && tr.hasAge(unsettled, horizon/youngPerHorizon)
	if cached > 0 {
		l.surprises = 0
	}
	if surprise {
		t.surprisedLocked(l, tr.recorded)
	}
	if missed && !t.passOverLocked(b, l, chain, tr, cached, now) {
		cleared := l.cleared != 0 && int64(now-l.cleared) <= horizon
		step := tr.step(cached + 1)
		if age := int64(tr.recorded - step.at); age >= unsettled && (!surprise || cleared) {
			l.usage.evicted(age, step.displaced, horizon)
		}
	}
	amnesia = t.amnesiaLocked(b, l, now)
	t.limits[b].span.Store(l.usage.span())
	return amnesia
}

// hasAge says whether some block's age was in [from, below).
func (tr *Trail) hasAge(from, below int64) bool {
	for i := range tr.n {
		if age := int64(tr.recorded - tr.steps[i].at); age >= from && age < below {
			return true
		}
	}
	return false
}
