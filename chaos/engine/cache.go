package engine

import "slices"

// The prefix cache: a path-compressed radix tree over chained keys. A node holds the run of keys of its incoming edge. As one
// key names a whole prefix, the first key of an edge is unique in the tree, one map finds every edge, and two runs that agree
// at a position agree in all positions before it, so that comparing runs is a bisection.
//
// Every node is pinned or released as a whole: a pin that ends inside a run splits it. So all keys of a node were last
// released at the same moment, and evicting the least recently released leaf from its tail is exactly the eviction order of an
// engine that frees block by block, last block of a sequence first.
type cache struct {
	heads     map[uint64]*node // first key of each edge
	root      node             // holds no keys, is never evicted
	tokens    int              // in all nodes
	evictable int              // in nodes that are not locked
	evicted   int64            // tokens, total
	clock     uint64           // releases so far
	lru       []*node          // heap by last: leaves that are not locked
	spare     []*node
}

type node struct {
	keys   []uint64 // owned; at least one
	parent *node
	tokens int    // of one key
	kids   int    // children
	refs   int    // jobs pinned here plus children that are locked; the node is locked while > 0
	last   uint64 // clock when it was last unlocked
	slot   int    // index in the heap, -1 if not in it
}

func (c *cache) init() {
	c.heads = make(map[uint64]*node)
	c.root = node{refs: 1, slot: -1} // a reference of its own: never unlocked
}

// match walks keys down from the root. n is the deepest node reached, within the number of its keys that match, total the
// number of all keys that do, unlocked the tokens among them that are evictable.
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

// common returns how many leading keys of a and b are equal; both are not empty and a[0] == b[0].
func common(a, b []uint64) int {
	lo, hi := 0, min(len(a), len(b))-1
	if a[hi] == b[hi] {
		return hi + 1
	}
	for lo+1 < hi { // a[lo] == b[lo], a[hi] != b[hi]
		if mid := (lo + hi) / 2; a[mid] == b[mid] {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + 1
}

// acquire pins the first within keys of n and what lies above, splitting n if that is not all of it. The result is what to
// release.
func (c *cache) acquire(n *node, within int) *node {
	if within < len(n.keys) {
		n = c.split(n, within)
	}
	c.pin(n)
	return n
}

// pin adds one job to n, locking n and its ancestors.
func (c *cache) pin(n *node) {
	for ; n != nil; n = n.parent {
		n.refs++
		if n.refs > 1 {
			return
		}
		c.evictable -= len(n.keys) * n.tokens
		if n.slot >= 0 {
			c.heapRemove(n.slot)
		}
	}
}

// release ends one pin on n. What nobody else holds becomes evictable, most recently used.
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
			c.heapPush(n)
		}
	}
}

// extend puts keys below n, on which the caller holds a pin, and moves that pin to their end. Keys that are there already are
// adopted, never stored twice. It may stop early, after the adopted or the stored part, and is then to be called again with
// the rest. total is how many keys were dealt with; 0 means that the first key is in the tree in another place, which chained
// keys of one size never are. room is how many keys the caller may still put here, these included.
func (c *cache) extend(n *node, keys []uint64, keyTokens, room int) (end *node, total int) {
	if kid := c.heads[keys[0]]; kid != nil {
		if kid.parent != n || kid.tokens != keyTokens {
			return n, 0
		}
		same := common(kid.keys, keys)
		kid = c.acquire(kid, same)
		n.refs-- // not the last one: kid is locked
		return kid, same
	}
	c.tokens += len(keys) * keyTokens
	if n != &c.root && n.kids == 0 && n.refs == 1 && n.tokens == keyTokens {
		n.keys = append(slices.Grow(n.keys, room), keys...) // the caller is alone at this leaf
		return n, len(keys)
	}
	kid := c.newNode()
	kid.keys, kid.parent, kid.tokens = append(slices.Grow(kid.keys, room), keys...), n, keyTokens
	kid.refs = 1 // the pin moves from n to kid, and n counts kid as locked instead
	n.kids++
	c.heads[keys[0]] = kid
	return kid, len(keys)
}

// split cuts the run of n after at keys and returns the new upper part. n stays the lower part, so that pins on it hold.
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

// evict frees at least want tokens, least recently released leaves first and each from its tail, or all that are evictable.
func (c *cache) evict(want int) {
	for want > 0 && len(c.lru) > 0 {
		n := c.lru[0]
		drop := min((want+n.tokens-1)/n.tokens, len(n.keys))
		freed := drop * n.tokens
		want -= freed
		c.tokens -= freed
		c.evictable -= freed
		c.evicted += int64(freed)
		if drop < len(n.keys) {
			n.keys = n.keys[:len(n.keys)-drop]
			return
		}
		c.heapRemove(0)
		delete(c.heads, n.keys[0])
		up := n.parent
		up.kids--
		if up.kids == 0 && up.refs == 0 {
			c.heapPush(up)
		}
		c.free(n)
	}
}

// maxSpareKeys bounds what a discarded node keeps for its next use.
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

func (c *cache) heapPush(n *node) {
	n.slot = len(c.lru)
	c.lru = append(c.lru, n)
	c.heapUp(n.slot)
}

func (c *cache) heapRemove(i int) {
	last := len(c.lru) - 1
	c.lru[i].slot = -1
	if i != last {
		c.lru[i] = c.lru[last]
		c.lru[i].slot = i
	}
	c.lru[last] = nil
	c.lru = c.lru[:last]
	if i != last {
		c.heapDown(i)
		c.heapUp(i)
	}
}

func (c *cache) heapUp(i int) {
	n := c.lru[i]
	for i > 0 {
		up := (i - 1) / 2
		if c.lru[up].last <= n.last {
			break
		}
		c.lru[i] = c.lru[up]
		c.lru[i].slot = i
		i = up
	}
	c.lru[i] = n
	n.slot = i
}

func (c *cache) heapDown(i int) {
	n := c.lru[i]
	for {
		kid := 2*i + 1
		if kid >= len(c.lru) {
			break
		}
		if kid+1 < len(c.lru) && c.lru[kid+1].last < c.lru[kid].last {
			kid++
		}
		if n.last <= c.lru[kid].last {
			break
		}
		c.lru[i] = c.lru[kid]
		c.lru[i].slot = i
		i = kid
	}
	c.lru[i] = n
	n.slot = i
}
