package prefixtree

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hash names a whole prefix of blocks: it is the keyed chain over every block from the root down to this one, so two
// equal hashes mean equal prompts up to there. Zero names nothing; a Chain never yields it and a Tree ignores it.
type Hash uint64

const (
	// DefaultBlockBytes is about 128 tokens of English or code: short enough that a 2k-token prompt has 16 blocks, long
	// enough that a 32k-token prompt hashes in microseconds.
	DefaultBlockBytes = 512

	minBlockBytes = 16
	maxBlockBytes = 1 << 20

	// chainVersion is part of the key derivation: change it whenever equal prompts would hash differently.
	chainVersion = "grapevine prefix chain 1"

	// saltVersion is the same of the key that salts are made with.
	saltVersion = "grapevine tenant salt 1"
)

// Errors of NewHasher.
var (
	ErrNoSecret   = errors.New("prefixtree: empty hashing secret")
	ErrBlockBytes = errors.New("prefixtree: block size out of range")
)

// Hasher holds the fleet's hashing constants: the secret and the block size, which must be equal on every node.
// Immutable and safe for concurrent use.
type Hasher struct {
	blockBytes int
	keyID      uint32
	initial    sipState // keyed, nothing absorbed
	saltKey    [sha256.Size]byte
}

// NewHasher derives the hashing constants from a fleet secret of any positive length and a block size in bytes (16 to
// 1 MiB). The block size takes part in the derivation, so hashes over different block sizes never meet by accident.
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
		keyID:      binary.LittleEndian.Uint32(sum[16:]), // disjoint from the bytes that key the chain
		initial:    newSip(binary.LittleEndian.Uint64(sum[0:]), binary.LittleEndian.Uint64(sum[8:])),
	}, nil
}

// BlockBytes returns the block size in bytes.
func (h *Hasher) BlockBytes() int { return h.blockBytes }

// KeyID names secret, block size and chain version together without revealing the secret. Peers with another KeyID must
// be refused: none of their hashes mean anything here.
func (h *Hasher) KeyID() uint32 { return h.keyID }

// Salt appends 32 hexadecimal digits that stand for a tenant and the salt that it chose itself, which may be empty. They
// are equal on every node of a fleet, as they depend on the secret alone, and who does not have the secret can neither
// compute them nor tell from them what they were made of.
func (h *Hasher) Salt(dst, tenant, own []byte) []byte {
	var words [3 * sha256.Size]byte // of one length, so that no input can be an extension of another
	copy(words[:], h.saltKey[:])
	a, b := sha256.Sum256(tenant), sha256.Sum256(own)
	copy(words[sha256.Size:], a[:])
	copy(words[2*sha256.Size:], b[:])
	sum := sha256.Sum256(words[:])
	return hex.AppendEncode(dst, sum[:16])
}

// Chain turns prompt bytes into block hashes as they come. It must be Reset before use, is reusable and not safe for
// concurrent use. The result depends only on the bytes of Root and Write calls in sequence: roots are delimited, prompt
// bytes are not, so any split of the prompt gives the same hashes.
//
// A block is hashed by unseeded xxh3 (seeding it above 240 bytes costs several times as much) and the block hash is
// absorbed by a SipHash-1-3 state keyed with the fleet's secret; the finalised copy of that state after block i is hash i.
// Somebody without the secret can thus neither compute the hash of a known prompt nor recognise one. He can construct
// two blocks with equal xxh3 and so make his own prompts look alike: a wrong routing estimate, never a wrong answer.
type Chain struct {
	h       *Hasher
	state   sipState
	started bool // the first Write has sealed the root
	buf     []byte
	hashes  []Hash
	length  int
}

// Reset empties the chain and binds it to h, keeping its memory.
func (c *Chain) Reset(h *Hasher) {
	c.h = h
	c.state = h.initial
	c.started = false
	c.length = 0
	c.hashes = c.hashes[:0]
	if cap(c.buf) < h.blockBytes {
		c.buf = make([]byte, 0, h.blockBytes)
	}
	c.buf = c.buf[:0]
}

// Root mixes p (model, LoRA, cache salt) into the root of the chain: prompts under different roots share no hash. Each
// call is delimited, so Root("ab"), Root("c") differs from Root("a"), Root("bc"). It panics after the first Write, when
// the root is sealed.
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

// Write appends prompt bytes. Whole blocks are hashed where they lie, the rest is copied; p is not retained.
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

// WriteString is Write for a string, without copying it.
func (c *Chain) WriteString(s string) { c.Write(unsafe.Slice(unsafe.StringData(s), len(s))) }

// WriteByte1 appends one prompt byte. (Not named WriteByte because it cannot fail and vet insists on an error there.)
func (c *Chain) WriteByte1(b byte) {
	if c.started && len(c.buf)+1 < c.h.blockBytes {
		c.buf = append(c.buf, b)
		c.length++
		return
	}
	one := [1]byte{b}
	c.Write(one[:])
}

// block absorbs one block's content hash and appends the prefix hash.
func (c *Chain) block(content uint64) {
	c.state.absorb(content)
	c.hashes = append(c.hashes, c.state.sum())
}

// Hashes returns the hashes of the full blocks written so far, root to leaf. It is a view, valid until the next Reset;
// further writes append to it.
func (c *Chain) Hashes() []Hash { return c.hashes }

// Len returns the number of prompt bytes written; those past the last full block are counted but not hashed.
func (c *Chain) Len() int { return c.length }

// FromKeys appends to dst one hash per key: the same keyed chain over content that is already hashed, one block per
// key. The simulator uses it for traces that carry block ids in place of text. root is mixed in as by one Chain.Root.
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

// sipState is the state of SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), used as a
// stream over 64-bit words whose every prefix is finalised on a copy. The absorbing round is the only serial dependency
// between blocks, so the finalisation overlaps with the hashing of the next block.
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

// seal separates root words from block words, so that no content can pass for a root. 0xee is the constant SipHash-128
// uses for its own domain separation.
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

// sipRound takes and returns values so that it is inlined and the state stays in registers.
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
