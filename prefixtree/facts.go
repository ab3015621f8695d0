package prefixtree

// Kind is what a Fact says.
type Kind uint8

// The kinds of facts.
const (
	Add    Kind = iota // a placement that the tree it comes from did not have at this block
	Touch              // a later time of one it had; tells the others the same as Add, but is worth less
	Drop               // the block is not on the backend: facts up to Time go
	Revert             // the placement at exactly Time failed before it was computed: back to Before, gone if that is 0
	Fence              // the backend has lost its cache: every fact on it up to Time is dead; no Hash
)

// Fact is one placement of one block as nodes tell each other: backend b, in its given generation, was last sent the
// prefix named by Hash at Time; or the retraction of such. A plain value; needs no other fact to be useful.
type Fact struct {
	Hash       Hash
	Time       Time
	Before     Time // of a Revert
	Generation uint32
	Backend    Backend
	// Span is how many blocks the fact stands for: itself and the non-anchors between it and the anchor above, at most 4. It
	// only counts towards the backend's usage, which gives the horizon; 0 is taken as 1.
	Span uint8
	Kind Kind
}

// AppendFacts appends to dst the facts, at anchor resolution and root first, that a Record of this chain on b makes in a tree
// that knows none of them. Times and ids are not checked. Safe for concurrent use.
func (t *Tree) AppendFacts(dst []Fact, b Backend, chain []Hash, at Time) []Fact {
	if int(b) >= len(t.ledgers) {
		return dst
	}
	gen := t.ledgers[b].generation.Load()
	for i := range anchorCount(len(chain)) {
		depth := anchorDepth(i, len(chain))
		dst = append(dst, Fact{
			Hash: chain[depth-1], Backend: b, Generation: gen, Time: at, Span: anchorSpan(depth),
		})
	}
	return dst
}

// Apply merges a fact from another node and reports whether it told anything new: if not, it need not be passed on. The
// merge is by maximum time, hence, but for Drop and Revert, idempotent, commutative and associative over facts. Refused,
// without effect, are facts of an older generation, behind the backend's fence, past retention by the latest time this tree
// has heard of, or with a backend id out of range. A fact of a generation newer than the one known is taken: its
// fence is on the way. So is one of generation 0: the node it comes from did not know the generation. Safe for concurrent use.
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

// Range calls yield with every live fact at an anchor, in no order, until it returns false. now decides what is live. It
// holds no lock while yield runs; facts that change meanwhile may be given in either state. Safe for concurrent use.
func (t *Tree) Range(now Time, yield func(Fact) bool) {
	now = clampTime(now)
	var kept []anchor
	for i := range t.shards {
		kept = t.anchors(&t.shards[i], now, kept[:0], 0, maxTime)
		for _, a := range kept {
			if !yield(t.fact(a)) {
				return
			}
		}
	}
}

// anchorSample is after how many facts Anchors reckons the rest: the estimate is then within a percent or so.
const anchorSample = 1 << 16

// Anchors returns how many live facts at anchors there are, which is what a Snapshot has: exactly if the tree is small, else
// by a sample of its shards, over which hashes are spread evenly. It takes two milliseconds at most. Safe for concurrent use.
func (t *Tree) Anchors(now Time) int { return t.estimateAnchors(clampTime(now), anchorSample) }

// estimateAnchors looks at about so many facts of the sample.
func (t *Tree) estimateAnchors(now Time, sample int64) int {
	all := int64(len(t.shards))
	some := all
	if facts := t.Stats().Facts; facts > sample {
		some = max(1, all*sample/facts)
	}
	count := int64(0)
	var kept []anchor
	for i := range some {
		kept = t.anchors(&t.shards[i*all/some], now, kept[:0], 0, maxTime)
		count += int64(len(kept))
	}
	return int(count * all / some)
}

// anchor is an anchor's fact as it lies in the tree.
type anchor struct {
	key uint64
	entry
}

func (t *Tree) fact(a anchor) Fact {
	b := entryBackend(a.entry)
	return Fact{
		Hash: Hash(a.key), Time: entryTime(a.entry), Generation: t.ledgers[b].generation.Load(), Backend: b,
		Span: entrySpan(a.entry),
	}
}

// anchors appends the shard's live anchor facts touched after the time after and not after upTo. It holds the shard's lock.
func (t *Tree) anchors(s *shard, now Time, dst []anchor, after, upTo Time) []anchor {
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
			if at := entryTime(e); e&entryAnchor != 0 && at > after && at <= upTo && !t.dead(e, now) {
				dst = append(dst, anchor{tb.key(i), e})
			}
		}
	}
	return dst
}
