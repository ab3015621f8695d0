package prefixtree

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hash names a whole prefix. Zero is never used.
type Hash uint64

const (
	// DefaultBlockBytes is about 128 tokens.
	DefaultBlockBytes = 512

	minBlockBytes = 16
	maxBlockBytes = 1 << 20

	// chainVersion must change whenever equal prompts would hash differently.
	chainVersion = "grapevine prefix chain 1"

	saltVersion = "grapevine tenant salt 1"
)

var (
	ErrNoSecret   = errors.New("prefixtree: empty hashing secret")
	ErrBlockBytes = errors.New("prefixtree: block size out of range")
)

// Hasher holds the fleet's secret and block size. Immutable.
type Hasher struct {
	blockBytes int
	keyID      uint32
	initial    sipState // keyed, nothing absorbed
	saltKey    [sha256.Size]byte
}

// NewHasher takes a non-empty secret and a block size of 16 bytes to 1 MiB, equal on every node.
// Errors: ErrNoSecret, ErrBlockBytes.
func NewHasher(secret []byte, blockBytes int) (*Hasher, error) {
	if len(secret) == 0 {
		return nil, ErrNoSecret
	}
	if blockBytes < minBlockBytes || blockBytes > maxBlockBytes {
		return nil, fmt.Errorf("%w: %d not in [%d, %d]", ErrBlockBytes, blockBytes, minBlockBytes, maxBlockBytes)
	}
	seed := make([]byte, 0, len(chainVersion)+8+len(secret))
	seed = append(seed, chainVersion...)
	seed = binary.LittleEndian.AppendUint64(seed, uint64(blockBytes))
	seed = append(seed, secret...)
	sum := sha256.Sum256(seed)
	return &Hasher{
		saltKey:    sha256.Sum256(append([]byte(saltVersion), secret...)),
		blockBytes: blockBytes,
		keyID:      binary.LittleEndian.Uint32(sum[16:]), // disjoint from the chain's key
		initial:    newSip(binary.LittleEndian.Uint64(sum[0:]), binary.LittleEndian.Uint64(sum[8:])),
	}, nil
}

func (h *Hasher) BlockBytes() int { return h.blockBytes }

// KeyID identifies secret, block size and chain version; hashes of another KeyID never match.
func (h *Hasher) KeyID() uint32 { return h.keyID }

// Secret returns a secret for a purpose, equal on every node, from which neither the fleet's secret
// nor that of another purpose can be computed.
func (h *Hasher) Secret(purpose string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, h.saltKey[:])
	mac.Write([]byte(purpose))
	return [sha256.Size]byte(mac.Sum(nil))
}

// Salt appends 32 hexadecimal digits for a tenant and its own salt, equal on every node, that
// cannot be computed without the secret.
func (h *Hasher) Salt(dst, tenant, own []byte) []byte {
	var words [3 * sha256.Size]byte // fixed lengths, so that no input extends another
	copy(words[:], h.saltKey[:])
	a, b := sha256.Sum256(tenant), sha256.Sum256(own)
	copy(words[sha256.Size:], a[:])
	copy(words[2*sha256.Size:], b[:])
	sum := sha256.Sum256(words[:])
	return hex.AppendEncode(dst, sum[:16])
}

// Chain hashes prompt bytes into blocks, however they are split over Write calls. Reset it before
// use. Not safe for concurrent use.
type Chain struct {
	h       *Hasher
	state   sipState
	started bool
	buf     []byte
	hashes  []Hash
	marks   []Mark
	length  int
}

// Mark names the prompt bytes up to a place that need not end a block. Its hash equals no block's.
type Mark struct {
	Hash  Hash
	Bytes int // of the prompt, before the place
}

// maxMarks is the number of marks that a Chain keeps: the last ones, because a prompt is most like the turn before it.
const maxMarks = 64

func (c *Chain) Reset(h *Hasher) {
	c.h = h
	c.state = h.initial
	c.started = false
	c.length = 0
	c.hashes = c.hashes[:0]
	c.marks = c.marks[:0]
	if cap(c.buf) < h.blockBytes {
		c.buf = make([]byte, 0, h.blockBytes)
	}
	c.buf = c.buf[:0]
}

// Root mixes p (model, LoRA, cache salt) into the root. It panics after the first Write.
func (c *Chain) Root(p []byte) {
	if c.started {
		panic("prefixtree: Chain.Root after Write")
	}
	absorbRoot(&c.state, p)
}

func absorbRoot(s *sipState, p []byte) {
	sum := xxh3.Hash128(p)
	s.absorb(uint64(len(p)))
	s.absorb(sum.Lo)
	s.absorb(sum.Hi)
}

// Write appends prompt bytes. It does not retain p.
func (c *Chain) Write(p []byte) {
	if !c.started {
		c.state.seal()
		c.started = true
	}
	c.length += len(p)
	size := c.h.blockBytes
	if len(c.buf) > 0 {
		n := min(size-len(c.buf), len(p))
		c.buf = append(c.buf, p[:n]...)
		p = p[n:]
		if len(c.buf) < size {
			return
		}
		c.block(xxh3.Hash(c.buf))
		c.buf = c.buf[:0]
	}
	for len(p) >= size {
		c.block(xxh3.Hash(p[:size]))
		p = p[size:]
	}
	c.buf = append(c.buf, p...)
}

func (c *Chain) WriteString(s string) { c.Write(unsafe.Slice(unsafe.StringData(s), len(s))) }

func (c *Chain) block(content uint64) {
	c.state.absorb(content)
	c.hashes = append(c.hashes, c.state.sum())
}

// Hashes returns the hashes of the full blocks, root first, valid until the next Reset.
func (c *Chain) Hashes() []Hash { return c.hashes }

func (c *Chain) Len() int { return c.length }

// Mark marks the place behind the bytes written so far, once, unless that is the root.
func (c *Chain) Mark() {
	if n := len(c.marks); c.length == 0 || n > 0 && c.marks[n-1].Bytes == c.length {
		return
	} else if n == maxMarks {
		c.marks = append(c.marks[:0], c.marks[1:]...)
	}
	state := c.state
	if !c.started {
		state.seal()
	}
	state.absorb(uint64(len(c.buf)))
	state.absorb(xxh3.Hash(c.buf))
	c.marks = append(c.marks, Mark{state.sum(), c.length})
}

// Marks returns the last 64 marks in the order of their places, valid until the next Reset.
func (c *Chain) Marks() []Mark { return c.marks }

// FromKeys appends one hash per key, for traces with block ids; root is as for Chain.Root.
func FromKeys(dst []Hash, h *Hasher, root []byte, keys []uint64) []Hash {
	state := h.initial
	absorbRoot(&state, root)
	state.seal()
	for _, k := range keys {
		state.absorb(k)
		dst = append(dst, state.sum())
	}
	return dst
}

// sipState is SipHash-1-3, finalised on a copy after every block.
type sipState struct{ v0, v1, v2, v3 uint64 }

func newSip(k0, k1 uint64) sipState {
	return sipState{
		v0: k0 ^ 0x736f6d6570736575,
		v1: k1 ^ 0x646f72616e646f6d,
		v2: k0 ^ 0x6c7967656e657261,
		v3: k1 ^ 0x7465646279746573,
	}
}

func (s *sipState) absorb(w uint64) {
	s.v0, s.v1, s.v2, s.v3 = sipRound(s.v0, s.v1, s.v2, s.v3^w)
	s.v0 ^= w
}

// seal separates root words from block words, with SipHash-128's constant.
func (s *sipState) seal() {
	s.v0, s.v1, s.v2, s.v3 = sipRound(s.v0, s.v1, s.v2^0xee, s.v3)
}

func (s *sipState) sum() Hash {
	v0, v1, v2, v3 := sipRound(s.v0, s.v1, s.v2^0xff, s.v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	if sum := v0 ^ v1 ^ v2 ^ v3; sum != 0 {
		return Hash(sum)
	}
	return 1 // zero marks an empty slot
}

// sipRound takes and returns values so that it is inlined into registers.
func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32) + v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
