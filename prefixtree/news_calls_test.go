package prefixtree

import "time"

// newsOf returns what call changes. It may be the only one.
func (t *Tree) newsOf(call func()) (news []Fact) {
	before := t.changed
	t.changed = func(changes []Fact) { news = append(news, changes...) }
	defer func() { t.changed = before }()
	call()
	return news
}

func (t *Tree) RecordNews(b Backend, chain []Hash, now Time, tr *TouchHistory, news []Fact) []Fact {
	return append(news, t.newsOf(func() { t.Record(b, chain, now, tr) })...)
}

func (t *Tree) LearnNews(b Backend, chain []Hash, tr *TouchHistory, cached int, now Time, news []Fact) (lesson Lesson, _ []Fact) {
	news = append(news, t.newsOf(func() { lesson = t.Learn(b, chain, tr, cached, now) })...)
	return lesson, news
}

func (t *Tree) RevertNews(b Backend, chain []Hash, tr *TouchHistory, news []Fact) (n int, _ []Fact) {
	news = append(news, t.newsOf(func() { n = t.Revert(b, chain, tr) })...)
	return n, news
}

func (t *Tree) ApplyDeltaNews(payload []byte, names Names, shift time.Duration, now Time, news []Fact) (a Applied, _ []Fact, err error) {
	news = append(news, t.newsOf(func() { a, err = t.ApplyDelta(payload, names, shift, now) })...)
	return a, news, err
}

func (t *Tree) Drop(b Backend, chain []Hash, from int, upTo Time) (news []Fact) {
	for i := max(0, from); i < len(chain); i++ {
		was, _, removed := t.edit(&place{shard: t.shard(uint64(chain[i]))}, b, uint64(chain[i]), func(e entry) (entry, bool) {
			return e, entryTime(e) <= upTo
		})
		if removed {
			t.tellGone(&news, Drop, chain[i], was, upTo, 0)
		}
	}
	return news
}

func (t *Tree) Forget(b Backend, now Time) (news []Fact) {
	if int(b) >= len(t.limits) {
		return nil
	}
	now = clampTime(now)
	t.advance(now)
	t.limits[b].raiseFloor(now)
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.clear()
	return []Fact{t.fence(b)}
}

// AppendFacts appends the anchor facts of a chain, root first.
func (t *Tree) AppendFacts(dst []Fact, b Backend, chain []Hash, at Time) []Fact {
	if int(b) >= len(t.ledgers) {
		return dst
	}
	gen := t.ledgers[b].generation.Load()
	for i := range anchorCount(len(chain)) {
		depth := anchorDepth(i, len(chain))
		dst = append(dst, Fact{
			Hash: chain[depth-1], Backend: b, Generation: gen, Time: at, Span: entrySpan(blockFlags(depth, len(chain))),
		})
	}
	return dst
}

// Apply merges one fact and reports whether it changed the tree.
func (t *Tree) Apply(f Fact) (changed bool) {
	if int(f.Backend) >= len(t.limits) || f.Hash == 0 && f.Kind != Fence {
		t.refused.Add(1)
		return false
	}
	f.Time = clampTime(f.Time)
	now := max(1, Time(t.clock.Load()))
	if t.late(&f, now) {
		return false
	}
	if f.Kind == Fence {
		return t.applyFence(&f, now)
	}
	m := merge{t: t, now: now}
	m.blocks[0], m.filled = f.Hash, 1
	m.runs[0], m.waiting = run{f, 0, 1}, 1
	m.flush()
	return m.changed > 0
}

func (t *Tree) FactDigest(now, from, to Time, names Names) (count, xor uint64) {
	t.Range(now, func(f Fact) bool {
		if key, ok := names.Key(f.Backend); ok && f.Time >= from && f.Time < to {
			count++
			xor ^= f.digest(key)
		}
		return true
	})
	return count, xor
}

func isAnchor(depth, total int) bool {
	return blockFlags(depth, total) != 0 && depth >= 1 && depth <= total
}
