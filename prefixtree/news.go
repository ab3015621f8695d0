package prefixtree

// Each call collects exactly what it changed at anchors: more could echo for ever, less would keep
// trees from converging.

const maxKeptFacts = 1024 // a prompt of 500k tokens; bounds the buffers that are reused

// buffer returns nil if the tree publishes no changes.
func (t *Tree) buffer() *[]Fact {
	if t.changed == nil {
		return nil
	}
	return t.buffers.Get().(*[]Fact)
}

func (t *Tree) publish(news *[]Fact) {
	if news == nil {
		return
	}
	if len(*news) > 0 {
		t.changed(*news)
	}
	if cap(*news) <= maxKeptFacts {
		*news = (*news)[:0]
		t.buffers.Put(news)
	}
}

func (t *Tree) tell(news *[]Fact, h Hash, prior, e entry, now Time) {
	if e = mergeEntries(prior, e); news == nil || e&entryAnchor == 0 {
		return
	}
	kind := Add
	if prior&entryAnchor != 0 && !t.dead(prior, now) {
		if entryTime(e) == entryTime(prior) {
			return
		}
		kind = Touch
	}
	if t.crossed(h, entryBackend(e), t.ledgers[entryBackend(e)].generation.Load(), entryTime(e)) {
		return // a faster clock retracted it
	}
	t.append(news, kind, h, e, entryTime(e), 0)
}

// tellGone: before is the fact's earlier time, 0 if none. Placements of other nodes that arrive later
// meet the retraction here as they do everywhere.
func (t *Tree) tellGone(news *[]Fact, kind Kind, h Hash, was entry, at, before Time) {
	if news != nil && was&entryAnchor != 0 {
		t.append(news, kind, h, was, at, before)
		b := entryBackend(was)
		t.retract(b, []Hash{h}, []place{{shard: t.shard(uint64(h))}}, retraction{before, at, t.ledgers[b].generation.Load()})
	}
}

func (t *Tree) append(news *[]Fact, kind Kind, h Hash, e entry, at, before Time) {
	f := t.fact(anchor{uint64(h), e})
	f.Kind, f.Time, f.Before = kind, at, before
	*news = append(*news, f)
}

func (t *Tree) fence(b Backend) Fact {
	return Fact{
		Time: Time(t.limits[b].floor.Load()), Generation: t.ledgers[b].generation.Load(), Backend: b, Kind: Fence,
	}
}
