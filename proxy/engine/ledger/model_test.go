package ledger

import (
	"container/list"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

// pool is a small model of vLLM's block pool: chained hashes, several copies of one hash, eviction of the block that was freed
// first, and an event for each block stored or removed.
type pool struct {
	size   int // tokens per block
	blocks []physical
	free   *list.List // of indices; the front goes next
	owed   int        // blocks that running sequences will still need
	chunk  int        // tokens of a prompt computed at a time; 0: all
	at     []*list.Element
	cached map[uint64][]int // copies by hash, oldest first
	events []events.Event   // of the present step
	stamp  []byte
}

type physical struct {
	hash uint64 // 0: not cached
	used int    // by running requests
}

func newPool(n, size int) *pool {
	p := &pool{size: size, blocks: make([]physical, n), free: list.New(), at: make([]*list.Element, n), cached: map[uint64][]int{}}
	for i := range n {
		p.at[i] = p.free.PushBack(i)
	}
	return p
}

func (p *pool) take(i int) {
	if p.blocks[i].used++; p.blocks[i].used == 1 {
		p.free.Remove(p.at[i])
	}
}

func (p *pool) release(i int) {
	if p.blocks[i].used--; p.blocks[i].used == 0 {
		p.at[i] = p.free.PushBack(i)
	}
}

func (p *pool) allocate() int {
	i := p.free.Front().Value.(int)
	if h := p.blocks[i].hash; h != 0 {
		rest := p.cached[h][:0]
		for _, c := range p.cached[h] {
			if c != i {
				rest = append(rest, c)
			}
		}
		if p.cached[h] = rest; len(rest) == 0 {
			delete(p.cached, h)
		}
		p.blocks[i].hash = 0
		p.events = append(p.events, events.Event{Kind: events.Removed, Hashes: []uint64{h}})
	}
	p.take(i)
	return i
}

func (p *pool) cache(i int, h, parent uint64, more bool) {
	p.blocks[i].hash = h
	p.cached[h] = append(p.cached[h], i)
	if last := len(p.events) - 1; more && last >= 0 {
		p.events[last].Hashes = append(p.events[last].Hashes, h)
		return
	}
	p.events = append(p.events, events.Event{Kind: events.Stored, Hashes: []uint64{h}, Parent: parent, HasParent: parent != 0,
		BlockSize: p.size, Session: p.stamp})
}

// sequence is a running request.
type sequence struct {
	tokens []uint32 // prompt, then answer
	prompt int
	filled int // tokens with KV memory
	pages  []int
	hashes []uint64
	stamp  []byte
	cached int // tokens found
	end    func(*sequence)
	begun  func() // after its first event
	again  func() // after a restart
	stale  bool   // predicted before the engine restarted
}

func hashOf(parent uint64, tokens []uint32) uint64 {
	h := fnv.New64a()
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], parent)
	h.Write(word[:])
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(word[:], t)
		h.Write(word[:4])
	}
	return h.Sum64() | 1
}

// admit starts a request if the pool has memory for its prompt and answer.
func (p *pool) admit(s *sequence) bool {
	parent := uint64(0)
	s.pages, s.hashes = nil, nil
	for n := 0; n+p.size < s.prompt; n += p.size { // never the last token
		h := hashOf(parent, s.tokens[n:n+p.size])
		c := p.cached[h]
		if len(c) == 0 {
			break
		}
		s.pages, s.hashes, parent = append(s.pages, c[0]), append(s.hashes, h), h
	}
	unused := p.free.Len()
	for _, i := range s.pages {
		if p.blocks[i].used == 0 {
			unused--
		}
	}
	need := (len(s.tokens)+p.size-1)/p.size - len(s.pages)
	if need > unused-p.owed {
		return false
	}
	p.owed += need
	for _, i := range s.pages {
		p.take(i)
	}
	s.cached = len(s.pages) * p.size
	s.filled = s.cached
	p.prefill(s)
	return true
}

// prefill computes the next chunk of a prompt.
func (p *pool) prefill(s *sequence) {
	to := s.prompt
	if p.chunk > 0 {
		to = min(to, s.filled+p.chunk)
	}
	p.advance(s, to)
}

// advance fills a sequence up to so many tokens.
func (p *pool) advance(s *sequence, to int) {
	p.stamp = s.stamp
	var fresh []int
	for n := len(s.pages) * p.size; n < to; n += p.size {
		s.pages = append(s.pages, p.allocate())
		p.owed--
	}
	for n := len(s.hashes); (n+1)*p.size <= to; n++ {
		parent := uint64(0)
		if n > 0 {
			parent = s.hashes[n-1]
		}
		h := hashOf(parent, s.tokens[n*p.size:(n+1)*p.size])
		s.hashes = append(s.hashes, h)
		p.cache(s.pages[n], h, parent, len(fresh) > 0)
		fresh = append(fresh, n)
	}
	s.filled = to
}

func (p *pool) finish(s *sequence) {
	p.owed -= (len(s.tokens)+p.size-1)/p.size - len(s.pages)
	for i := len(s.pages) - 1; i >= 0; i-- {
		p.release(s.pages[i])
	}
}

// message is a text of words; each has bytes and tokens of its own.
type message struct {
	role  byte
	words []uint32
}

func wordBytes(w uint32) []byte {
	n := 2 + int(w*2654435761>>28)%9
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte((w>>(i%4*6)+uint32(i))%26)
	}
	return binary.BigEndian.AppendUint32(b, w) // distinct
}

func wordTokens(dst []uint32, w uint32) []uint32 {
	for i := range 1 + (w>>16+w)%3 {
		dst = append(dst, w<<2|i)
	}
	return dst
}

func randomWords(rng *rand.Rand, n int) []uint32 {
	words := make([]uint32, n)
	kind := rng.Uint32N(3) << 16 // texts differ in bytes per token
	for i := range words {
		words[i] = kind | rng.Uint32N(1<<16)
	}
	return words
}

const (
	headToken = 1<<31 + iota
	bodyToken
	endToken
	lineToken
)

func render(messages []message) (tokens []uint32) {
	for _, m := range messages {
		tokens = append(tokens, headToken, uint32(m.role), bodyToken)
		for _, w := range m.words {
			tokens = wordTokens(tokens, w)
		}
		tokens = append(tokens, endToken, lineToken)
	}
	return append(tokens, headToken, 'a', bodyToken)
}

// text hashes messages as proxy/prompt does.
func text(h *prefixtree.Hasher, c *prefixtree.Chain, messages []message) Prompt {
	c.Reset(h)
	c.Root([]byte("model"))
	for _, m := range messages {
		c.Mark()
		c.Write([]byte{0x0e, m.role, 0x0f})
		for _, w := range m.words {
			c.Write(wordBytes(w))
		}
	}
	c.Mark()
	return Prompt{Blocks: c.Hashes(), Marks: c.Marks(), BlockBytes: h.BlockBytes()}
}
