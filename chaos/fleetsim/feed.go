package fleetsim

import (
	"fmt"
	"time"

	"grapevine/chaos/workload"
	"grapevine/prefixtree"
)

// treeBlockTokens is the least size of a tree block, as in live routers. Keys of fewer tokens are
// grouped into a block; keys of more make larger blocks, because a key cannot be divided.
const treeBlockTokens = prefixtree.DefaultBlockBytes / workload.BytesPerToken

// chainer turns a request's keys into the tree's block hashes. Immutable, safe for concurrent use.
type chainer struct {
	hasher *prefixtree.Hasher
	keys   int
}

func newChainer(keyTokens int, seed uint64) (*chainer, error) {
	if keyTokens < 1 {
		return nil, fmt.Errorf("%w: the workload has keys of %d tokens", ErrConfig, keyTokens)
	}
	c := &chainer{keys: max(1, (treeBlockTokens+keyTokens-1)/keyTokens)}
	var err error
	c.hasher, err = prefixtree.NewHasher(fmt.Appendf(nil, "fleetsim %d", seed), c.keys*keyTokens*workload.BytesPerToken)
	if err != nil {
		return nil, fmt.Errorf("%w: blocks of %d tokens: %w", ErrConfig, c.keys*keyTokens, err)
	}
	return c, nil
}

// hashes appends the hashes of r's full blocks. A key names its whole prefix, so the last key of a
// block names the block. scratch is working memory.
func (c *chainer) hashes(dst []prefixtree.Hash, scratch *[]uint64, r *workload.Request) []prefixtree.Hash {
	keys := r.Keys
	if c.keys > 1 {
		s := (*scratch)[:0]
		for i := c.keys - 1; i < len(r.Keys); i += c.keys {
			s = append(s, r.Keys[i])
		}
		*scratch, keys = s, s
	}
	return prefixtree.FromKeys(dst, c.hasher, nil, keys)
}

// feed is a source of requests with their hashes. Requests may be shared between runs and must not
// be written to.
type feed interface {
	Peek() (time.Duration, bool)
	// Next returns the next request and its block hashes, which may use buf and are valid until
	// Done.
	Next(buf []prefixtree.Hash) (*workload.Request, []prefixtree.Hash)
	Done(r *workload.Request, at time.Duration)
}

type tape struct {
	requests []*workload.Request
	hashes   [][]prefixtree.Hash
}

// newTape draws the whole source. A later turn shares its session's memory of hashes, because real
// sessions repeat 96 % of their tokens.
func newTape(src workload.Source, c *chainer) *tape {
	t := &tape{}
	latest := make(map[int][]prefixtree.Hash)
	var scratch []uint64
	var all []prefixtree.Hash
	for r := src.Next(); r != nil; r = src.Next() {
		all = c.hashes(all[:0], &scratch, r)
		var own []prefixtree.Hash
		before := latest[r.Session]
		switch n := len(before); {
		case r.Session >= 0 && n > 0 && n <= len(all) && before[n-1] == all[n-1]:
			own = append(before, all[n:]...)
		default:
			own = append([]prefixtree.Hash(nil), all...)
		}
		if r.Session >= 0 && len(own) >= len(before) {
			latest[r.Session] = own
		}
		t.requests = append(t.requests, r)
		t.hashes = append(t.hashes, own[:len(own):len(own)])
	}
	return t
}

type reel struct {
	*tape
	next int
}

func (r *reel) Peek() (time.Duration, bool) {
	if r.next == len(r.requests) {
		return 0, false
	}
	return r.requests[r.next].At, true
}

func (r *reel) Next([]prefixtree.Hash) (*workload.Request, []prefixtree.Hash) {
	r.next++
	return r.requests[r.next-1], r.hashes[r.next-1]
}

func (*reel) Done(*workload.Request, time.Duration) {}

type live struct {
	workload.Source
	chainer *chainer
	scratch []uint64
}

func (l *live) Next(buf []prefixtree.Hash) (*workload.Request, []prefixtree.Hash) {
	r := l.Source.Next()
	return r, l.chainer.hashes(buf[:0], &l.scratch, r)
}
