package ledger

import (
	"sync"

	"grapevine.example/prefixtree"
)

// Links are the exact places that any engine has shown, for all ledgers of a node. Engines of one model, build and block size give
// equal text equal hashes, so one engine's block with the hash of another one's place is that place. Where the hashes differ, its
// depth still is the same, which depends on the tokenizer and the block size alone. What an engine shows itself comes first.
// They also say which engine got the latest prompt with an end. Safe for concurrent use.
type Links struct {
	mu     sync.RWMutex
	places latest[link]
	ends   latest[prefixtree.Backend]
}

// latest are the newest entries, mostLinks at most.
type latest[V any] struct {
	at   map[prefixtree.Hash]V
	ring []prefixtree.Hash
	next int
}

func (l *latest[V]) put(h prefixtree.Hash, v V) {
	if l.at == nil {
		l.at = make(map[prefixtree.Hash]V)
	}
	if _, known := l.at[h]; !known {
		if len(l.ring) < mostLinks {
			l.ring = append(l.ring, h)
		} else {
			delete(l.at, l.ring[l.next])
			l.ring[l.next] = h
			l.next = (l.next + 1) % mostLinks
		}
	}
	l.at[h] = v
}

// link is a point without a block.
type link struct {
	engine uint64
	want   uint32
	size   int32
}

const mostLinks = 1 << 15 // 2 MB, and 1 MB of ends

// NewLinks returns an empty set. Prompts of different models have different places.
func NewLinks() *Links { return &Links{} }

func (k *Links) sent(end prefixtree.Hash, b prefixtree.Backend) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends.put(end, b)
}

// Latest returns the engine that got the latest prompt that ends at one of the last marks of a prompt, which then goes on from it.
func (k *Links) Latest(marks []prefixtree.Mark) (b prefixtree.Backend, known bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for i := len(marks) - 1; i >= max(0, len(marks)-lookedUp) && !known; i-- {
		b, known = k.ends.at[marks[i].Hash]
	}
	return b, known
}

func (k *Links) learn(p *point, size int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places.put(p.hash, link{p.engine, p.want & (wantMask | isEnd | isExact | isWhole), int32(size)})
}

func (k *Links) find(h prefixtree.Hash, size int) (n link, known bool) {
	if k == nil {
		return n, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	n, known = k.places.at[h]
	return n, known && int(n.size) == size
}

// find returns the point of a place, which another engine may have shown.
func (l *Ledger) find(h prefixtree.Hash) *point {
	if p := l.points.find(h); p != nil {
		return p
	}
	n, known := l.cfg.Links.find(h, l.size)
	if !known {
		return nil
	}
	p := point{hash: h, engine: n.engine, want: n.want}
	id, there := l.blocks.find(n.engine)
	if !there || !l.blocks.at(id).resident() || l.blocks.at(id).depth() != p.depth() {
		return nil
	}
	p.block = id
	l.points.put(p)
	return l.points.find(h)
}
