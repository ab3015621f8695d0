package fleetsim

import (
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// memory is a node's tree with gossip: before each use it applies what has arrived, and it
// announces its own changes.
type memory struct {
	*prefixtree.Tree
	log  *factLog
	node int
	now  *time.Duration
	news []prefixtree.Fact
}

var _ interface {
	policy.Index
	policy.Retractor
} = (*memory)(nil)

func (m *memory) Match(out *prefixtree.Matches, chain []prefixtree.Hash, now prefixtree.Time) {
	m.log.deliver(m.node, *m.now)
	m.Tree.Match(out, chain, now)
}

func (m *memory) Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, tr *prefixtree.TouchHistory) {
	m.log.deliver(m.node, *m.now)
	m.news = m.RecordNews(b, chain, now, tr, m.news[:0])
	m.log.tell(m.node, *m.now, m.news)
}

func (m *memory) Learn(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory, cached int, now prefixtree.Time) prefixtree.Lesson {
	m.log.deliver(m.node, *m.now)
	var lesson prefixtree.Lesson
	lesson, m.news = m.LearnNews(b, chain, tr, cached, now, m.news[:0])
	m.log.tell(m.node, *m.now, m.news)
	return lesson
}

func (m *memory) Revert(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory) (retracted int) {
	m.log.deliver(m.node, *m.now)
	retracted, m.news = m.RevertNews(b, chain, tr, m.news[:0])
	m.log.tell(m.node, *m.now, m.news)
	return retracted
}
