package prefixtree

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
	for _, h := range blocks {
		was, _, gone := t.edit(&place{shard: t.shard(uint64(h))}, b, uint64(h), func(e entry) (entry, bool) {
			at := entryTime(e)
			return e, at <= upTo && !limit.dead(at, now)
		})
		if gone {
			removed++
			t.tellGone(news, Drop, h, was, upTo, 0)
		}
	}
	return removed
}
