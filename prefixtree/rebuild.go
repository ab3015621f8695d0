package prefixtree

import "slices"

const (
	// Full at 25/32 of its slots, grown by a fifth: 20.5 to 24.6 bytes for a fact with one holder,
	// and 11 slots visited for a miss, 3 for a hit.
	loadNumerator, loadDenominator = 25, 32
	headroom                       = 1.2

	minSlots = 16

	evictShare = 1.0 / 16 // amortises the cost of a rebuild at the budget

	spareWords = 8 // plus a word per 32 keys: newly shared blocks do not rebuild each time

	cutSamples = 1024
)

func maxKeys(n uint64) uint64 { return n * loadNumerator / loadDenominator }

func slotsFor(keys int) int { return keys*loadDenominator/loadNumerator + 2 }

type survey struct {
	keys, facts int
	words       int
	dead        int // dropped as dead
	cut         int
}

func (v survey) bytes() int64 { return int64(slotsFor(v.keys))*16 + int64(v.words)*8 }

// sieve keeps live facts from before on, except the first ties at before.
type sieve struct {
	t      *Tree
	now    Time
	before Time
	ties   int
}

func (f *sieve) keep(tb *table, v uint64, dst []entry, sv *survey) []entry {
	if v == 0 {
		return dst
	}
	for i := range holders(v) {
		e := tb.holder(v, i)
		at := entryTime(e)
		switch {
		case f.t.dead(e, f.now):
			sv.dead++
		case at < f.before:
			sv.cut++
		case at == f.before && f.ties > 0:
			f.ties--
			sv.cut++
		default:
			dst = append(dst, e)
		}
	}
	if kept := len(dst); kept > 0 {
		sv.keys++
		sv.facts += kept
		if kept > 1 {
			sv.words += classSizes[classFor(kept)]
		}
	}
	return dst
}

type workspace struct{ kept, sample []uint64 }

func (w *workspace) survey(tb *table, f sieve) (sv survey) {
	for i := range tb.cap {
		w.kept = f.keep(tb, tb.value(i), w.kept[:0], &sv)
	}
	return sv
}

// rebuildLocked compacts, with room for moreKeys and moreEntries. It drops dead facts and, at the
// budget, the oldest. Readers use the old table meanwhile.
func (t *Tree) rebuildLocked(s *shard, moreKeys, moreEntries int, now Time) {
	f := sieve{t: t, now: now}
	moreWords := 0
	if moreEntries > 1 {
		moreWords = classSizes[classFor(moreEntries)]
	}
	need := func(sv survey) int64 {
		sv.keys += moreKeys
		sv.words += moreWords
		return sv.bytes()
	}
	w := t.workspaces.Get().(*workspace)
	defer t.workspaces.Put(w)
	from := s.tab.Load()
	from.freeze()
	sv := w.survey(from, f)
	limit := float64(t.share) / (1 + evictShare)
	if float64(need(sv)) > limit {
		for share := evictShare; ; share *= 2 {
			f.before, f.ties = w.cut(from, sieve{t: t, now: now}, sv.facts, share)
			if after := w.survey(from, f); float64(need(after)) <= limit || after.facts == 0 {
				sv = after
				break
			}
		}
	}
	grow := min(headroom, float64(t.share)/float64(need(sv)))
	slots := max(minSlots, int(float64(slotsFor(sv.keys+moreKeys))*grow))
	words := 0
	if sv.words+moreWords > 0 {
		words = int(float64(sv.words+moreWords) * grow)
		if grow == headroom {
			words = max(words, sv.words+moreWords+spareWords+sv.keys/32)
		}
	}
	s.replaceLocked(w, f, newTable(slots, words))
}

// cut returns the time below which about share of the facts lie, and how many of that time to drop.
func (w *workspace) cut(tb *table, f sieve, facts int, share float64) (before Time, ties int) {
	if share >= 1 {
		return maxTime + 1, 0
	}
	stride := max(1, facts/cutSamples)
	w.sample = w.sample[:0]
	var sv survey
	n := 0
	for i := range tb.cap {
		w.kept = f.keep(tb, tb.value(i), w.kept[:0], &sv)
		for _, e := range w.kept {
			if n++; n%stride == 0 {
				w.sample = append(w.sample, uint64(entryTime(e)))
			}
		}
	}
	if len(w.sample) == 0 {
		return 0, 0
	}
	slices.Sort(w.sample)
	rank := int(share * float64(len(w.sample)))
	at := w.sample[rank]
	older, _ := slices.BinarySearch(w.sample, at)
	return Time(at), (rank - older + 1) * stride
}

func (s *shard) replaceLocked(w *workspace, f sieve, to *table) {
	from := s.tab.Load()
	var sv survey
	keys, facts, top := 0, 0, 0
	for i := range from.cap {
		w.kept = f.keep(from, from.value(i), w.kept[:0], &sv)
		kept := w.kept
		if len(kept) == 0 {
			continue
		}
		room := uint64(keys) < maxKeys(to.cap)
		if len(kept) > 1 {
			room = room && top+classSizes[classFor(len(kept))] <= len(to.arena)
		}
		if !room {
			sv.cut += len(kept)
			continue
		}
		keys++
		facts += len(kept)
		v := kept[0]
		if len(kept) > 1 {
			class := classFor(len(kept))
			for j, e := range kept {
				to.arena[top+j] = e // not yet published: plain stores
			}
			v = makeSpan(uint32(top), len(kept), class)
			top += classSizes[class]
		}
		key := from.key(i)
		slot, _ := to.locate(key, 0)
		to.slots[2*slot], to.slots[2*slot+1] = key, v
	}
	s.keys, s.facts, s.top = keys, facts, top
	s.hand = 0
	s.free = [classCount]uint32{}
	s.counts.expired.Add(uint64(sv.dead))
	s.counts.evicted.Add(uint64(sv.cut))
	s.counts.rebuilds.Add(1)
	s.counts.bytes.Store(to.bytes())
	s.tab.Store(to)
}

func (t *Tree) shrinkLocked(s *shard, now Time) bool {
	tb := s.tab.Load()
	if tb.cap <= 4*minSlots || uint64(s.keys) > maxKeys(tb.cap)/3 {
		return false
	}
	t.rebuildLocked(s, 0, 0, now)
	return true
}
