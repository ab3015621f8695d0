package prefixtree

// A tree's news is what a call has changed in it at anchor resolution, as facts for the other nodes: neither more, or two
// nodes could tell each other the same things for ever, nor less, or trees would not come to hold the same. Merged by maximum
// time, any trees that have been told all news hold the same times at anchors, evictions and drops that cross aside.
//
// The functions here are Record, Learn and so on that also append their news, chain root first, to a slice of the caller's.

// RecordNews is Record that appends to news what it changed at anchors: those that are new and those touched beyond the grain.
// Safe for concurrent use.
func (t *Tree) RecordNews(b Backend, chain []Hash, now Time, tr *Trail, news []Fact) []Fact {
	t.record(b, chain, now, tr, &news)
	return news
}

// LearnNews is Learn that appends to news the touches at the end of the request, the facts that the count contradicts, and the
// fence after an amnesia. Safe for concurrent use.
func (t *Tree) LearnNews(b Backend, chain []Hash, tr *Trail, cached int, now Time, news []Fact) (Lesson, []Fact) {
	lesson := t.learn(b, chain, tr, cached, now, &news)
	return lesson, news
}

// RevertNews is Revert that appends to news what it took back. Safe for concurrent use.
func (t *Tree) RevertNews(b Backend, chain []Hash, tr *Trail, news []Fact) (retracted int, _ []Fact) {
	retracted = t.revert(b, chain, tr, &news)
	return retracted, news
}

// DropNews is Drop, of facts not later than now, that appends to news what it removed. Safe for concurrent use.
func (t *Tree) DropNews(b Backend, chain []Hash, from int, now Time, news []Fact) []Fact {
	t.drop(b, chain, from, clampTime(now), &news)
	return news
}

// ForgetNews is Forget that appends the fence to news. Safe for concurrent use.
func (t *Tree) ForgetNews(b Backend, now Time, news []Fact) []Fact {
	if int(b) < len(t.limits) {
		t.Forget(b, now)
		t.tellFence(&news, b)
	}
	return news
}

// tell appends what became of an anchor that was prior when e was merged into it.
func (t *Tree) tell(news *[]Fact, h Hash, prior, e entry, now Time) {
	e = mergeEntries(prior, e)
	if e&entryAnchor == 0 {
		return
	}
	kind := Add
	if prior&entryAnchor != 0 && !t.dead(prior, now) {
		if entryTime(e) == entryTime(prior) {
			return
		}
		kind = Touch
	}
	t.append(news, kind, h, e, entryTime(e), 0)
}

// tellGone appends that a fact has been retracted as of the given time, and what its time was before that, 0 if none.
func (t *Tree) tellGone(news *[]Fact, kind Kind, h Hash, was entry, at, before Time) {
	if was&entryAnchor != 0 {
		t.append(news, kind, h, was, at, before)
	}
}

func (t *Tree) append(news *[]Fact, kind Kind, h Hash, e entry, at, before Time) {
	b := entryBackend(e)
	*news = append(*news, Fact{
		Hash: h, Time: at, Before: before, Generation: t.ledgers[b].generation.Load(), Backend: b, Span: entrySpan(e), Kind: kind,
	})
}

// tellFence appends b's fence as it stands.
func (t *Tree) tellFence(news *[]Fact, b Backend) {
	*news = append(*news, t.fence(b))
}

func (t *Tree) fence(b Backend) Fact {
	return Fact{
		Time: Time(t.limits[b].floor.Load()), Generation: t.ledgers[b].generation.Load(), Backend: b, Kind: Fence,
	}
}
