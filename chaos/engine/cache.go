package engine

import (
	"container/heap"
	"slices"
)

// cache is a path-compressed radix tree over chained keys. A node holds the run of keys of its
// incoming edge. A key names a whole prefix, so the first key of an edge is unique in the tree, one
// map finds every edge, and runs that agree at a position agree before it: comparing runs is a
// bisection.
//
// Every node is pinned or released as a whole, because a pin that ends inside a run splits it. All
// keys of a node thus have one release time, and evicting the least recently released leaf from its
// tail gives the order of an engine that frees block by block, last block of a sequence first.
type cache struct {
	heads     map[uint64]*node
	root      node
	tokens    int
	evictable int
	evicted   int64
	clock     uint64
	lru       nodeHeap
	spare     []*node
	journal   *journal
}

type node struct {
	keys   []uint64
	parent *node
	tokens int
	kids   int
	refs   int // jobs pinned here plus locked children; the node is locked while > 0
	last   uint64
	slot   int
}

func (c *cache) init() {
	c.heads = make(map[uint64]*node)
	c.root = node{refs: 1, slot: -1}
}

// match walks keys down from the root. It returns the deepest node, the number of that node's keys
// that match, the total number of matching keys, and the evictable tokens among them.
func (c *cache) match(keys []uint64, keyTokens int) (n *node, within, total, unlocked int) {
	n = &c.root
	for total < len(keys) {
		next := c.heads[keys[total]]
		if next == nil || next.parent != n || next.tokens != keyTokens {
			break
		}
		n, within = next, common(next.keys, keys[total:])
		total += within
		if n.refs == 0 {
			unlocked += within * keyTokens
		}
		if within < len(n.keys) {
			break
		}
	}
	return n, within, total, unlocked
}

// common returns how many leading keys of a and b are equal. Both are non-empty and a[0] == b[0].
func common(a, b []uint64) int {
	lo, hi := 0, min(len(a), len(b))-1
	if a[hi] == b[hi] {
		return hi + 1
	}
	for lo+1 < hi {
		if mid := (lo + hi) / 2; a[mid] == b[mid] {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + 1
}

// acquire pins the first within keys of n and all its ancestors, splitting n if necessary. The
// caller passes the result to release.
func (c *cache) acquire(n *node, within int) *node {
	if within < len(n.keys) {
		n = c.split(n, within)
	}
	c.pin(n)
	return n
}

func (c *cache) pin(n *node) {
	for ; n != nil; n = n.parent {
		n.refs++
		if n.refs > 1 {
			return
		}
		c.evictable -= len(n.keys) * n.tokens
		if n.slot >= 0 {
			heap.Remove(&c.lru, n.slot)
		}
	}
}

func (c *cache) release(n *node) {
	c.clock++
	for ; n != nil; n = n.parent {
		n.refs--
		if n.refs > 0 {
			return
		}
		n.last = c.clock
		c.evictable += len(n.keys) * n.tokens
		if n.kids == 0 {
			heap.Push(&c.lru, n)
		}
	}
}

// extend puts keys below n, which the caller has pinned, and moves that pin to their end. It adopts
// existing keys. It may stop after an adopted or stored part (total keys), and the caller calls it
// again with the rest; total is 0 only if the first key exists elsewhere in the tree, which chained
// keys of one size rule out. room is the number of keys the caller may still add here, these
// included.
func (c *cache) extend(n *node, keys []uint64, keyTokens, room int) (end *node, total int) {
	if kid := c.heads[keys[0]]; kid != nil {
		if kid.parent != n || kid.tokens != keyTokens {
			return n, 0
		}
		same := common(kid.keys, keys)
		kid = c.acquire(kid, same)
		n.refs--
		return kid, same
	}
	c.tokens += len(keys) * keyTokens
	if n != &c.root && n.kids == 0 && n.refs == 1 && n.tokens == keyTokens {
		n.keys = append(slices.Grow(n.keys, room), keys...)
		return n, len(keys)
	}
	kid := c.newNode()
	kid.keys, kid.parent, kid.tokens = append(slices.Grow(kid.keys, room), keys...), n, keyTokens
	kid.refs = 1 // the pin moves from n to kid, and n counts kid as locked instead
	n.kids++
	c.heads[keys[0]] = kid
	return kid, len(keys)
}

// split cuts the run of n after at keys and returns the new upper part. n remains the lower part,
// so pins on it stay valid.
func (c *cache) split(n *node, at int) *node {
	up := c.newNode()
	up.keys = append(up.keys, n.keys[:at]...)
	up.parent, up.tokens, up.kids, up.last = n.parent, n.tokens, 1, n.last
	if n.refs > 0 {
		up.refs = 1
	}
	n.keys = append([]uint64(nil), n.keys[at:]...)
	n.parent = up
	c.heads[up.keys[0]] = up
	c.heads[n.keys[0]] = n
	return up
}

// evict frees at least want tokens, or all evictable ones, from the tails of the least recently
// released leaves.
func (c *cache) evict(want int) {
	for want > 0 && len(c.lru) > 0 {
		n := c.lru[0]
		drop := min((want+n.tokens-1)/n.tokens, len(n.keys))
		c.journal.removed(n.keys[len(n.keys)-drop:])
		freed := drop * n.tokens
		want -= freed
		c.tokens -= freed
		c.evictable -= freed
		c.evicted += int64(freed)
		if drop < len(n.keys) {
			n.keys = n.keys[:len(n.keys)-drop]
			return
		}
		heap.Pop(&c.lru)
		delete(c.heads, n.keys[0])
		up := n.parent
		up.kids--
		if up.kids == 0 && up.refs == 0 {
			heap.Push(&c.lru, up)
		}
		c.free(n)
	}
}

// maxSpareKeys bounds the capacity that a discarded node keeps for reuse.
const maxSpareKeys = 256

func (c *cache) newNode() *node {
	if last := len(c.spare) - 1; last >= 0 {
		n := c.spare[last]
		c.spare = c.spare[:last]
		return n
	}
	return &node{slot: -1}
}

func (c *cache) free(n *node) {
	keys := n.keys[:0]
	if cap(keys) > maxSpareKeys {
		keys = nil
	}
	*n = node{keys: keys, slot: -1}
	if len(c.spare) < 1024 {
		c.spare = append(c.spare, n)
	}
}

// nodeHeap orders unlocked leaves by their release, the least recent first.
type nodeHeap []*node

func (h nodeHeap) Len() int           { return len(h) }
func (h nodeHeap) Less(i, j int) bool { return h[i].last < h[j].last }
func (h nodeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h *nodeHeap) Push(x any) {
	n := x.(*node)
	n.slot = len(*h)
	*h = append(*h, n)
}

func (h *nodeHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	n.slot = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return n
}
