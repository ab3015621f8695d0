package ledger

import (
	"sync"
	"sync/atomic"

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

	fetched atomic.Uint32 // as index.fetched
}

// latest are the newest entries, mostLinks at most.
type latest[V any] struct {
	ring  []keyed[V]
	index index // of the ring
	next  int
}

type keyed[V any] struct {
	hash  prefixtree.Hash
	value V
}

func (k keyed[V]) key() uint64 { return uint64(k.hash) }

func (l *latest[V]) find(h prefixtree.Hash) (v V, known bool) {
	if len(l.ring) == 0 {
		return v, false
	}
	i, _, known := seek(&l.index, l.ring, uint64(h))
	if known {
		v = l.ring[i].value
	}
	return v, known
}

func (l *latest[V]) put(h prefixtree.Hash, v V) {
	if !l.index.fits(min(len(l.ring)+1, mostLinks)) {
		l.index.enlarge(min(max(2*len(l.ring), mostLinks/32), mostLinks), keys(l.ring))
	}
	i, s, known := seek(&l.index, l.ring, uint64(h))
	switch {
	case known:
		l.ring[i].value = v
		return
	case len(l.ring) < mostLinks:
		i = uint32(len(l.ring))
		l.ring = append(l.ring, keyed[V]{})
	default:
		i = uint32(l.next)
		l.index.remove(l.ring[i].key(), i)
		_, s, _ = seek(&l.index, l.ring, uint64(h))
		l.next = (l.next + 1) % mostLinks
	}
	l.ring[i] = keyed[V]{h, v}
	l.index.put(s, i)
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
		b, known = k.ends.find(marks[i].Hash)
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
	n, known = k.places.find(h)
	return n, known && int(n.size) == size
}

func (k *Links) fetch(places []place) {
	if k == nil {
		return
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	var any uint32
	for i := range places {
		if x := &k.places.index; len(x.words) > 0 {
			any ^= x.words[x.search(uint64(places[i].hash)).at]
		}
	}
	k.fetched.Store(any)
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
	p.setBlock(id)
	l.points.put(p)
	return l.points.find(h)
}
