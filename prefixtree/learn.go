package prefixtree

import "slices"

const (
	shrinkRate = 0.1 // steps of the LRU distance: too little belief costs more hits than too much
	growRate   = 0.3

	// countSlack: rounding makes a count short by less than a block plus this share of the match.
	countSlack = 1.0 / 16

	// surpriseLimit responses in a row with nothing cached, where a block younger than a quarter of
	// the horizon was predicted, mean a lost cache.
	surpriseLimit   = 3
	youngPerHorizon = 4
)

type Lesson struct {
	Predicted int  // leading blocks with a fact before the request
	Cached    int  // reported leading blocks, at most the chain; -1: unknown
	Retracted int  // facts removed because the count contradicts them
	CacheLost bool // the engine lost its cache: the backend was cleared
}

// Learn corrects the tree after the request of a Record, of which it takes chain and tr; cached is
// the number of leading blocks reported as cached, -1 if unknown. The request's facts are touched
// again. The count concerns only earlier facts: it removes those on [cached:], moves the horizon,
// and may reveal a lost cache, which clears the backend. Safe for concurrent use.
func (t *Tree) Learn(b Backend, chain []Hash, tr *TouchHistory, cached int, now Time) Lesson {
	news := t.buffer()
	defer t.publish(news)
	if int(b) >= len(t.limits) {
		t.refused.Add(1)
		return Lesson{Cached: -1}
	}
	now = clampTime(now)
	t.advance(now)
	lesson := Lesson{Cached: max(-1, min(cached, len(chain)))}
	if tr.recorded == 0 {
		return lesson
	}
	lesson.Predicted = tr.depth()
	switch due := t.limits[b].settled(now); {
	case lesson.Cached == 0 && lesson.Predicted > 0, short(lesson.Cached, lesson.Predicted) && t.doubtful(b, tr, lesson.Cached, now):
		// What an engine that lost its cache has computed must survive cacheLostLocked's fence.
		lesson.Retracted = t.conclude(b, chain, lesson.Cached, tr.settled, now-1, now, news)
	case tr.recorded <= due || short(lesson.Cached, lesson.Predicted):
		lesson.Retracted = t.conclude(b, chain, lesson.Cached, tr.settled, due, now, news)
	}
	if lesson.Cached >= 0 {
		lesson.CacheLost = t.learnAges(b, chain, tr, lesson.Cached, now)
	}
	if lesson.CacheLost && news != nil {
		*news = append(*news, t.fence(b))
	}
	return lesson
}

func short(cached, predicted int) bool {
	if cached <= 0 {
		return cached == 0 && predicted > 0
	}
	return float64(predicted-cached) > 1+countSlack*float64(predicted)
}

// conclude touches the chain's facts up to due, but removes those up to placed on [cached:].
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
	var again TouchHistory
	again.settled = due
	touched := 0
	note := func(h Hash, e, to entry) {
		if to != e {
			touched++
			again.push(touched, entryTime(e))
			t.tell(news, h, e, to, now)
		}
	}
	var a prefetch
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
				t.tellGone(news, Drop, chain[i], was, placed, 0)
			case tried && is == to: // the uncertain touch may have taken effect
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

func (t *Tree) learnAges(b Backend, chain []Hash, tr *TouchHistory, cached int, now Time) (lost bool) {
	predicted := tr.depth()
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	horizon := t.limits[b].horizon(tr.recorded)
	// Within the request's own duration the block may not have been computed.
	unsettled := int64(now - tr.recorded)
	missed := short(cached, predicted)

	if found := min(cached, predicted); found > 0 {
		step := tr.step(found)
		l.usage.survived(int64(tr.recorded-step.at), step.displaced, horizon)
		if !missed {
			l.foundLocked(step, tr.recorded)
		}
	}
	// A backend cleared lately may have a smaller cache than believed.
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
	lost = t.cacheLostLocked(b, l, now)
	t.limits[b].span.Store(l.usage.span())
	return lost
}

func (tr *TouchHistory) hasAge(from, below int64) bool {
	return slices.ContainsFunc(tr.steps[:tr.n], func(s touchStep) bool {
		age := int64(tr.recorded - s.at)
		return age >= from && age < below
	})
}
