package prefixtree

// RecordNews is Record that also appends to news what it changed in this tree at anchor resolution, root first: what the
// other nodes must be told so that all trees come to hold the same. Safe for concurrent use; news is the caller's.
func (t *Tree) RecordNews(b Backend, chain []Hash, now Time, tr *Trail, news []Fact) []Fact {
	t.Record(b, chain, now, tr)
	return news
}

// LearnNews is Learn that also appends to news what it changed in this tree at anchor resolution.
func (t *Tree) LearnNews(b Backend, chain []Hash, tr *Trail, cached int, now Time, news []Fact) (Lesson, []Fact) {
	return t.Learn(b, chain, tr, cached, now), news
}

// RevertNews is Revert that also appends to news what it took back at anchor resolution.
func (t *Tree) RevertNews(b Backend, chain []Hash, tr *Trail, news []Fact) (retracted int, _ []Fact) {
	return t.Revert(b, chain, tr), news
}

// DropNews is Drop, at the given time, that also appends to news what it removed at anchor resolution.
func (t *Tree) DropNews(b Backend, chain []Hash, from int, now Time, news []Fact) []Fact {
	t.Drop(b, chain, from)
	return news
}

// ForgetNews is Forget that also appends the fence to news.
func (t *Tree) ForgetNews(b Backend, now Time, news []Fact) []Fact {
	t.Forget(b, now)
	return news
}
