package ledger

import (
	"sync"

	"grapevine.example/prefixtree"
)

// Links are the exact places that any engine has shown, for all ledgers of a node. Engines of one model, build and block size give
// equal text equal hashes, so one engine's block with the hash of another one's place is that place. Where the hashes differ, its
// depth still is the same, which depends on the tokenizer and the block size alone. What an engine shows itself comes first.
// Safe for concurrent use.
type Links struct {
	mu   sync.RWMutex
	at   map[prefixtree.Hash]link
	ring []prefixtree.Hash
	next int
}

// link is a point without a block.
type link struct {
	engine uint64
	want   uint32
	size   int32
}

const mostLinks = 1 << 15 // 2 MB

// NewLinks returns an empty set. Prompts of different models have different places.
func NewLinks() *Links { return &Links{at: make(map[prefixtree.Hash]link)} }

func (k *Links) learn(p *point, size int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.at[p.hash]; !known {
		if len(k.ring) < mostLinks {
			k.ring = append(k.ring, p.hash)
		} else {
			delete(k.at, k.ring[k.next])
			k.ring[k.next] = p.hash
			k.next = (k.next + 1) % mostLinks
		}
	}
	k.at[p.hash] = link{p.engine, p.want & (wantMask | isEnd | isExact | isWhole), int32(size)}
}

func (k *Links) find(h prefixtree.Hash, size int) (n link, known bool) {
	if k == nil {
		return n, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	n, known = k.at[h]
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
