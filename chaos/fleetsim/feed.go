package fleetsim

import (
	"fmt"

	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
)

// treeBlockTokens is the live routers'. Shorter keys are grouped; longer ones make larger blocks.
const treeBlockTokens = prefixtree.DefaultBlockBytes / workload.BytesPerToken

// chainer turns keys into the tree's block hashes. Safe for concurrent use.
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

// hashes appends the hashes of r's full blocks. A key names its whole prefix, so a block's last key
// names the block.
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

type feed struct {
	workload.Source
	*chainer
	scratch []uint64
}

// next uses buf for the block hashes.
func (f *feed) next(buf []prefixtree.Hash) (*workload.Request, []prefixtree.Hash) {
	r := f.Source.Next()
	return r, f.hashes(buf[:0], &f.scratch, r)
}
