package share

import (
	"sync"
	"sync/atomic"
	"time"

	"grapevine/prefixtree"
)

// outboxLimit is more records than a node places in its worst second, 32 bytes each.
const outboxLimit = 1 << 17

// maxKeptFacts, enough for a prompt of 500k tokens, bounds the buffers that are reused.
const maxKeptFacts = 1024

// Placements is a node's tree for its policy. It queues what the policy changes for the peers,
// without blocking and, once warm, without allocating. Safe for concurrent use.
type Placements struct {
	*prefixtree.Tree // for reads
	outbox           *prefixtree.Outbox
	buffers          sync.Pool // of *[]prefixtree.Fact
	queued           [prefixtree.Fence + 1]atomic.Uint64
}

// NewPlacements returns the Placements of a tree.
func NewPlacements(tree *prefixtree.Tree) *Placements {
	p := &Placements{Tree: tree, outbox: prefixtree.NewOutbox(outboxLimit)}
	p.buffers.New = func() any { return new([]prefixtree.Fact) }
	return p
}

// Record implements policy.Index.
func (p *Placements) Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, h *prefixtree.TouchHistory) {
	buffer := p.buffer()
	p.queue(buffer, p.RecordNews(b, chain, now, h, *buffer))
}

// Learn implements policy.Index.
func (p *Placements) Learn(b prefixtree.Backend, chain []prefixtree.Hash, h *prefixtree.TouchHistory, cached int, now prefixtree.Time) prefixtree.Lesson {
	buffer := p.buffer()
	lesson, changes := p.LearnNews(b, chain, h, cached, now, *buffer)
	p.queue(buffer, changes)
	return lesson
}

// Revert implements policy.Retractor.
func (p *Placements) Revert(b prefixtree.Backend, chain []prefixtree.Hash, h *prefixtree.TouchHistory) (retracted int) {
	buffer := p.buffer()
	retracted, changes := p.RevertNews(b, chain, h, *buffer)
	p.queue(buffer, changes)
	return retracted
}

// apply merges a peer's batch or snapshot page. Where this node knows more it queues that;
// ApplyDeltaNews explains why this ends.
func (p *Placements) apply(payload []byte, names prefixtree.Names, shift time.Duration, now prefixtree.Time) (prefixtree.Applied, error) {
	buffer := p.buffer()
	applied, changes, err := p.ApplyDeltaNews(payload, names, shift, now, *buffer)
	p.queue(buffer, changes)
	return applied, err
}

func (p *Placements) buffer() *[]prefixtree.Fact { return p.buffers.Get().(*[]prefixtree.Fact) }

// queue queues the changes for the peers and returns the buffer.
func (p *Placements) queue(buffer *[]prefixtree.Fact, changes []prefixtree.Fact) {
	if len(changes) > 0 {
		var sums [len(p.queued)]uint64
		for i := range changes {
			sums[changes[i].Kind]++
		}
		for kind, n := range sums {
			p.queued[kind].Add(n)
		}
		p.outbox.Add(changes)
	}
	if cap(changes) <= maxKeptFacts {
		*buffer = changes[:0]
	}
	p.buffers.Put(buffer)
}
