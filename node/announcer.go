package node

import (
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

// announcer is the tree of a fleet's node. It queues changes for peers, without blocking and, once
// warm, without allocating. Safe for concurrent use.
type announcer struct {
	*prefixtree.Tree // for reads
	outbox           *prefixtree.Outbox
	buffers          sync.Pool // of *[]prefixtree.Fact
	posted           kindCounts
}

type kindCounts [prefixtree.Fence + 1]atomic.Uint64

func (c *kindCounts) add(news []prefixtree.Fact) {
	var sums [len(c)]uint64
	for i := range news {
		sums[news[i].Kind]++
	}
	for kind, n := range sums {
		if n > 0 {
			c[kind].Add(n)
		}
	}
}

func (c *kindCounts) count(kind prefixtree.Kind) uint64 { return c[kind].Load() }

func newAnnouncer(tree *prefixtree.Tree, outbox *prefixtree.Outbox) *announcer {
	a := &announcer{Tree: tree, outbox: outbox}
	a.buffers.New = func() any { return new([]prefixtree.Fact) }
	return a
}

// maxKeptFacts, enough for a prompt of 500k tokens, bounds the buffers that are reused.
const maxKeptFacts = 1024

func (a *announcer) buffer() *[]prefixtree.Fact { return a.buffers.Get().(*[]prefixtree.Fact) }

// post queues news and returns the buffer.
func (a *announcer) post(buffer *[]prefixtree.Fact, news []prefixtree.Fact) {
	if len(news) > 0 {
		a.posted.add(news)
		a.outbox.Add(news)
	}
	if cap(news) <= maxKeptFacts {
		*buffer = news[:0]
	}
	a.buffers.Put(buffer)
}

// Record implements policy.Index.
func (a *announcer) Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, tr *prefixtree.TouchHistory) {
	buffer := a.buffer()
	a.post(buffer, a.RecordNews(b, chain, now, tr, *buffer))
}

// Learn implements policy.Index.
func (a *announcer) Learn(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory, cached int, now prefixtree.Time) prefixtree.Lesson {
	buffer := a.buffer()
	lesson, news := a.LearnNews(b, chain, tr, cached, now, *buffer)
	a.post(buffer, news)
	return lesson
}

// Revert implements policy.Retractor.
func (a *announcer) Revert(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory) (retracted int) {
	buffer := a.buffer()
	retracted, news := a.RevertNews(b, chain, tr, *buffer)
	a.post(buffer, news)
	return retracted
}
