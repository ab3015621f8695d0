package prefixtree

type Kind uint8

const (
	Add    Kind = iota // a placement that the sending tree did not have at this block
	Touch              // a later time of a known block
	Drop               // the block is not on the backend: removes facts up to Time
	Revert             // the placement at Time failed: those in (Before, Time] count as Before, 0: none
	Fence              // the backend lost its cache: kills all facts up to Time; no Hash
)

// Fact is the last placement of a prefix on a backend generation, or its retraction.
type Fact struct {
	Hash       Hash
	Time       Time
	Before     Time
	Generation uint32
	Backend    Backend
	// Span counts the block and the non-anchors above, at most 4; 0 means 1.
	Span uint8
	Kind Kind
}

// Range yields every live anchor fact, in no order, until yield returns false; it holds no lock
// meanwhile. Safe for concurrent use.
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

const anchorSample = 1 << 16 // an error of one percent

// Anchors estimates the number of live anchor facts in at most 2 ms. Safe for concurrent use.
func (t *Tree) Anchors(now Time) int { return t.estimateAnchors(clampTime(now), anchorSample) }

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

// anchors appends the shard's live anchor facts touched in (after, upTo].
func (t *Tree) anchors(s *shard, now Time, dst []anchor, after, upTo Time) []anchor {
	s.mu.Lock()
	defer s.mu.Unlock()
	tb := s.tab.Load()
	for i := range tb.cap {
		v := tb.value(i)
		for j := range holders(v) {
			e := tb.holder(v, j)
			if at := entryTime(e); e&entryAnchor != 0 && at > after && at <= upTo && !t.dead(e, now) {
				dst = append(dst, anchor{tb.key(i), e})
			}
		}
	}
	return dst
}
