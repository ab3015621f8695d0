package engine

import (
	"testing"

	"pgregory.net/rapid"
)

func chain(contents []uint64) []uint64 {
	keys := make([]uint64, len(contents))
	h := uint64(14695981039346656037)
	for i, c := range contents {
		h = (h ^ c ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		h ^= h >> 29
		keys[i] = h
	}
	return keys
}

// drawKeys draws keys from few contents, so that prefixes are often shared and runs often split.
func drawKeys(t *rapid.T, label string, most int) []uint64 {
	return chain(rapid.SliceOfN(rapid.Uint64Range(0, 2), 0, most).Draw(t, label))
}

type naiveCache struct {
	blocks map[uint64]*naiveBlock
	clock  int
}

type naiveBlock struct{ refs, last, depth int }

func (c *naiveCache) match(keys []uint64) int {
	for i, k := range keys {
		if c.blocks[k] == nil {
			return i
		}
	}
	return len(keys)
}

func (c *naiveCache) hold(keys []uint64, from, to int) {
	for i := from; i < to; i++ {
		b := c.blocks[keys[i]]
		if b == nil {
			b = &naiveBlock{depth: i}
			c.blocks[keys[i]] = b
		}
		b.refs++
	}
}

func (c *naiveCache) release(keys []uint64) {
	c.clock++
	for _, k := range keys {
		b := c.blocks[k]
		if b.refs--; b.refs == 0 {
			b.last = c.clock
		}
	}
}

func (c *naiveCache) evict(n int) {
	for ; n > 0; n-- {
		var victim uint64
		var worst *naiveBlock
		for k, b := range c.blocks {
			if b.refs == 0 && (worst == nil || b.last < worst.last || (b.last == worst.last && b.depth > worst.depth)) {
				victim, worst = k, b
			}
		}
		if worst == nil {
			return
		}
		delete(c.blocks, victim)
	}
}

func (c *naiveCache) evictable() (n int) {
	for _, b := range c.blocks {
		if b.refs == 0 {
			n++
		}
	}
	return n
}

func TestCacheAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const tokens = 3
		var c cache
		c.init()
		naive := naiveCache{blocks: map[uint64]*naiveBlock{}}
		type holder struct {
			keys []uint64
			held int
			node *node
		}
		var holders []*holder
		seen := [][]uint64{}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				h := &holder{keys: drawKeys(t, "keys", 12)}
				n, within, total, _ := c.match(h.keys, tokens)
				if want := naive.match(h.keys); total != want {
					t.Fatalf("match %d, want %d", total, want)
				}
				h.node, h.held = c.acquire(n, within), total
				naive.hold(h.keys, 0, total)
				holders, seen = append(holders, h), append(seen, h.keys)
			},
			"extend": func(t *rapid.T) {
				if len(holders) == 0 {
					t.Skip("none")
				}
				h := rapid.SampledFrom(holders).Draw(t, "holder")
				to := rapid.IntRange(h.held, len(h.keys)).Draw(t, "to")
				naive.hold(h.keys, h.held, to)
				for h.held < to {
					end, n := c.extend(h.node, h.keys[h.held:to], tokens, len(h.keys)-h.held)
					if n == 0 {
						t.Fatal("extend refused a chained key")
					}
					h.node, h.held = end, h.held+n
				}
			},
			"release": func(t *rapid.T) {
				if len(holders) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(holders)-1).Draw(t, "holder")
				h := holders[i]
				holders = append(holders[:i:i], holders[i+1:]...)
				c.release(h.node)
				naive.release(h.keys[:h.held])
			},
			"evict": func(t *rapid.T) {
				n := rapid.IntRange(0, 9).Draw(t, "blocks")
				c.evict(n * tokens)
				naive.evict(n)
			},
			"": func(t *rapid.T) {
				if err := c.check(); err != nil {
					t.Fatal(err)
				}
				if c.tokens != tokens*len(naive.blocks) || c.evictable != tokens*naive.evictable() {
					t.Fatalf("%d tokens, %d evictable, want %d, %d blocks of %d",
						c.tokens, c.evictable, len(naive.blocks), naive.evictable(), tokens)
				}
				for _, keys := range seen {
					if _, _, got, _ := c.match(keys, tokens); got != naive.match(keys) {
						t.Fatalf("match %d, want %d", got, naive.match(keys))
					}
				}
			},
		})
		for _, h := range holders {
			c.release(h.node)
		}
		if c.evictable != c.tokens {
			t.Fatalf("%d of %d tokens evictable while no job holds any", c.evictable, c.tokens)
		}
		c.evict(c.tokens)
		if c.tokens != 0 || len(c.heads) != 0 || c.root.kids != 0 || c.root.refs != 1 {
			t.Fatalf("emptied cache has %d tokens, %d nodes", c.tokens, len(c.heads))
		}
	})
}

func TestCacheStoresSharedOnce(t *testing.T) {
	var c cache
	c.init()
	base := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	put := func(contents ...uint64) {
		keys := chain(contents)
		n, within, held, _ := c.match(keys, 16)
		end := c.acquire(n, within)
		for held < len(keys) {
			var more int
			end, more = c.extend(end, keys[held:], 16, 0)
			held += more
		}
		c.release(end)
	}
	put(base...)
	put(append(base[:8:8], 9, 10)...)
	if len(c.heads) != 1 || c.tokens != 10*16 {
		t.Fatalf("%d nodes, %d tokens after a continuation, want 1, 160", len(c.heads), c.tokens)
	}
	put(append(base[:4:4], 77)...)
	if len(c.heads) != 3 || c.tokens != 11*16 {
		t.Fatalf("%d nodes, %d tokens after a branch, want 3, 176", len(c.heads), c.tokens)
	}
}
