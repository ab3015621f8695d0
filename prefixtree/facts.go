package prefixtree

// Fact is one placement of one block as nodes tell each other: backend b, in its given generation, was last sent the
// prefix named by Hash at Time. A plain value; needs no other fact to be useful.
type Fact struct {
	Hash       Hash
	Backend    Backend
	Generation uint32
	Time       Time
	// Span is how many blocks the fact stands for: itself and the non-anchors between it and the anchor above. It only
	// counts towards the backend's usage, which gives the horizon; 0 is taken as 1.
	Span uint8
}

// AppendFacts appends to dst the facts, at anchor resolution and root first, that a Record of this chain on b makes: what
// a node tells the others. Times and ids are not checked. Safe for concurrent use.
func (t *Tree) AppendFacts(dst []Fact, b Backend, chain []Hash, at Time) []Fact {
	if int(b) >= len(t.ledgers) {
		return dst
	}
	gen := t.ledgers[b].generation.Load()
	above := 0
	for i := range anchorCount(len(chain)) {
		depth := anchorDepth(i, len(chain))
		dst = append(dst, Fact{
			Hash: chain[depth-1], Backend: b, Generation: gen, Time: at, Span: uint8(depth - above),
		})
		above = depth
	}
	return dst
}

// Apply merges a fact from another node and reports whether it told anything new: if not, it need not be passed on. The
// merge is by maximum time, hence idempotent, commutative and associative over facts. Refused, without effect, are facts of
// an older generation, behind the backend's fence, past retention by the latest time this tree has heard of, or with a
// backend id out of range. A fact of a generation newer than the one known is taken: its fence is on the way. Safe
// for concurrent use.
func (t *Tree) Apply(f Fact) (changed bool) {
	if int(f.Backend) >= len(t.limits) || f.Hash == 0 {
		t.refused.Add(1)
		return false
	}
	now := Time(t.clock.Load())
	at := clampTime(f.Time)
	lim := &t.limits[f.Backend]
	if f.Generation < t.ledgers[f.Backend].generation.Load() || lim.dead(at, now) {
		return false
	}
	t.noteBackend(f.Backend, at)
	prior := t.put(&place{shard: t.shard(uint64(f.Hash))}, uint64(f.Hash), makeEntry(f.Backend, at, true), max(now, 1))
	was := Time(0)
	if prior != 0 && !lim.dead(entryTime(prior), now) {
		was = entryTime(prior)
	}
	if was >= at {
		return false
	}
	t.useAgain(f.Backend, max(1, int(f.Span)), was, at)
	return true
}

// Range calls yield with every live fact at an anchor, in no order, until it returns false: what a joining node asks
// for. now decides what is live. It holds no lock while yield runs; facts that change meanwhile may be given in either
// state. Safe for concurrent use.
func (t *Tree) Range(now Time, yield func(Fact) bool) {
	now = clampTime(now)
	var keys, entries []uint64
	for i := range t.shards {
		keys, entries = t.shards[i].anchors(keys[:0], entries[:0])
		for j, e := range entries {
			if t.dead(e, now) {
				continue
			}
			b := entryBackend(e)
			f := Fact{
				Hash: Hash(keys[j]), Backend: b, Generation: t.ledgers[b].generation.Load(), Time: entryTime(e), Span: 1,
			}
			if !yield(f) {
				return
			}
		}
	}
}

// anchors appends the key and entry of every anchor fact of the shard.
func (s *shard) anchors(keys, entries []uint64) ([]uint64, []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tb := s.tab.Load()
	for i := range tb.cap {
		v := tb.value(i)
		n, off := 1, 0
		if v&spanTag != 0 {
			n, off = spanCount(v), spanOffset(v)
		}
		for j := range n {
			e := v
			if v&spanTag != 0 {
				e = tb.entry(off, j)
			}
			if e&entryAnchor != 0 {
				keys = append(keys, tb.key(i))
				entries = append(entries, e)
			}
		}
	}
	return keys, entries
}
