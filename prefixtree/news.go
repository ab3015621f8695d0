package prefixtree

// News is exactly what a call changed in this tree at anchors: more could echo for ever, less would
// keep trees from converging. It is appended root first.

// RecordNews is Record that appends the new and touched anchors to news. Safe for concurrent use.
func (t *Tree) RecordNews(b Backend, chain []Hash, now Time, tr *TouchHistory, news []Fact) []Fact {
	t.record(b, chain, now, tr, &news)
	return news
}

// LearnNews is Learn that appends touches, removed facts and the fence of a lost cache to news.
// Safe for concurrent use.
func (t *Tree) LearnNews(b Backend, chain []Hash, tr *TouchHistory, cached int, now Time, news []Fact) (Lesson, []Fact) {
	lesson := t.learn(b, chain, tr, cached, now, &news)
	return lesson, news
}

// RevertNews is Revert that appends what it undid to news. Safe for concurrent use.
func (t *Tree) RevertNews(b Backend, chain []Hash, tr *TouchHistory, news []Fact) (retracted int, _ []Fact) {
	retracted = t.revert(b, chain, tr, &news)
	return retracted, news
}

// DropNews is Drop of facts up to now that appends the removed ones to news. Safe for concurrent
// use.
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

// tellGone appends the retraction of a fact as of at; before is its earlier time, 0 if none.
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

func (t *Tree) tellFence(news *[]Fact, b Backend) {
	*news = append(*news, t.fence(b))
}

func (t *Tree) fence(b Backend) Fact {
	return Fact{
		Time: Time(t.limits[b].floor.Load()), Generation: t.ledgers[b].generation.Load(), Backend: b, Kind: Fence,
	}
}
