package fleetsim

import (
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// memory is a node's tree as its router sees it, joined to those of the other nodes: whatever has arrived from them is
// there before the tree is used, and what the node records is told to them.
type memory struct {
	*prefixtree.Tree
	log  *factLog
	node int
	now  *time.Duration // the fleet's
}

var _ interface {
	policy.Index
	policy.Retractor
} = (*memory)(nil)

func (m *memory) Match(out *prefixtree.Matches, chain []prefixtree.Hash, now prefixtree.Time) {
	m.log.deliver(m.node, *m.now)
	m.Tree.Match(out, chain, now)
}

func (m *memory) Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, tr *prefixtree.Trail) {
	m.log.deliver(m.node, *m.now)
	m.Tree.Record(b, chain, now, tr)
	m.tell(b, chain, now)
}

func (m *memory) Learn(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.Trail, cached int, now prefixtree.Time) prefixtree.Lesson {
	m.log.deliver(m.node, *m.now)
	return m.Tree.Learn(b, chain, tr, cached, now)
}

func (m *memory) tell(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time) {
	m.log.tell(m.node, *m.now, func(dst []prefixtree.Fact) []prefixtree.Fact {
		return m.AppendFacts(dst, b, chain, now)
	})
}

// grains is the part of a horizon within which a tree leaves a fact as it is (prefixtree/DESIGN.md): a request that lasted
// less has nothing to tell at its end.
const grains = 64

// ended tells of the touch at a request's end.
func (m *memory) ended(b prefixtree.Backend, chain []prefixtree.Hash, lasted time.Duration, now prefixtree.Time) {
	if lasted > m.Horizon(b)/grains {
		m.tell(b, chain, now)
	}
}
