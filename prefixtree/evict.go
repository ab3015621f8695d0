package prefixtree

import "slices"

// Evicted removes the facts of a backend about blocks that the backend has evicted, and returns how many facts it removed. It leaves
// facts touched after upTo, since the backend may have computed their blocks again, and facts past their retention,
// which no match returns. It publishes the removals to peers. Safe for concurrent use.
func (t *Tree) Evicted(b Backend, blocks []Hash, upTo, now Time) (removed int) {
	if int(b) >= len(t.limits) {
		return 0
	}
	news := t.buffer()
	defer t.publish(news)
	upTo, now = clampTime(upTo), clampTime(now)
	limit := &t.limits[b]
	aged := func(e entry) (entry, bool) {
		at := entryTime(e)
		return e, at <= upTo && !limit.dead(at, now)
	}
	done := retraction{0, upTo, t.ledgers[b].generation.Load()}
	var a prefetch
	var gone [lookahead]Hash
	for run := range slices.Chunk(blocks, lookahead) {
		a.fetch(t, run)
		n := 0
		for i, h := range run {
			was, _, dropped := t.edit(&a.places[i], b, uint64(h), aged)
			if !dropped {
				continue
			}
			removed++
			if news != nil && was&entryAnchor != 0 {
				t.append(news, Drop, h, was, upTo, 0)
				gone[n], a.places[n] = h, a.places[i]
				n++
			}
		}
		t.retract(b, gone[:n], a.places[:], done)
	}
	return removed
}
