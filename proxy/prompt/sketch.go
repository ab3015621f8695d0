package prompt

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// Field is a part of a prompt, in the order of the prompt bytes.
type Field uint8

const (
	FieldSalt     Field = iota // cache_salt and extra_key: no bytes of the prompt, but part of every block's hash
	FieldSettings              // members that change the template
	FieldTools
	FieldSystem // system prompt, or the messages before the first of a user
	FieldUser   // the first message of a user
	FieldLater  // the messages behind it
	FieldPrompt // a plain prompt
	FieldTail

	fields
)

var fieldNames = [fields]string{"cache_salt", "settings", "tools", "system", "first user message", "later messages", "prompt", "tail"}

func (f Field) String() string {
	if f < fields {
		return fieldNames[f]
	}
	return "unknown"
}

// Sketch describes the beginning of a prompt without its text.
type Sketch struct {
	Seed   uint64  // of the hashes; set before [Parser.Sketch]
	Root   uint32  // prompts of different roots (adapter, tenant) can share no cache
	Bytes  int     // of the whole prompt
	Chunks []Chunk // of its first SketchBytes, at most SketchChunks
}

// Chunk is a run of prompt bytes in one field. Content decides where it ends: behind an insertion, the chunks are soon the same
// again. A tool, message and text begins a chunk.
type Chunk struct {
	Hash  uint32
	Bytes uint16 // at most MaxChunk; 0 in FieldSalt
	Field Field
}

// Bounds of a sketch. 64 KiB are some 16,000 tokens. A chunk has 190 bytes on average, so 448 are enough for text, and for tools whose
// texts are shorter than that.
const (
	SketchBytes  = 64 << 10
	SketchChunks = 448
	MaxChunk     = 512

	minChunk = 64
	cutMask  = 127 << 57 // one place in 128 ends a chunk
)

// gear has a random number for each byte, the same everywhere.
var gear = func() (table [256]uint64) {
	for i := range table {
		table[i] = xxh3.HashSeed([]byte{byte(i)}, 0x67656172)
	}
	return table
}()

// Sketch fills s from the body that Parse has read last, without error. It keeps nothing of the body in s.
func (p *Parser) Sketch(s *Sketch) {
	w := sketcher{s: s}
	s.Chunks = make([]Chunk, 0, 64)
	s.Root = uint32(xxh3.HashSeed(p.tape.bytes(p.root[rootLoRA]), s.Seed))
	if len(p.salt) > 0 { // of a tenant
		s.Root = bits.RotateLeft32(s.Root, 1) ^ uint32(xxh3.HashSeed(p.salt, s.Seed))
	} else if salt, extra := p.tape.bytes(p.root[rootSalt]), p.tape.bytes(p.root[rootExtra]); len(salt)+len(extra) > 0 {
		sum := binary.LittleEndian.AppendUint64(nil, xxh3.HashSeed(salt, s.Seed))
		s.Chunks = append(s.Chunks, Chunk{Hash: uint32(xxh3.HashSeed(append(sum, extra...), s.Seed)), Field: FieldSalt})
	}
	s.Bytes = p.chain.Len()
	for i, at := range p.slots {
		if at.empty() {
			continue
		}
		w.enter(fieldOf(slot(i)))
		for _, o := range p.tape.ops[at.from:at.to] {
			if !w.write(p.tape.bytes(o)) {
				return
			}
		}
	}
	w.cut()
}

func fieldOf(s slot) Field {
	switch {
	case s < slotTools:
		return FieldSettings
	case s <= slotFunctions:
		return FieldTools
	case s <= slotMessages:
		return FieldSystem // what each message is follows from its role
	case s < slotSuffix:
		return FieldPrompt
	}
	return FieldTail
}

// sketcher cuts prompt bytes into chunks.
type sketcher struct {
	s       *Sketch
	field   Field
	asked   bool // the first message of a user has begun
	inRole  bool // buf holds the beginning of a message's role
	rolling uint64
	buf     [MaxChunk]byte
	n       int // bytes in buf
	total   int // bytes in chunks
}

func (w *sketcher) enter(f Field) {
	w.cut()
	w.field = f
}

// write reports whether the sketch has room for more.
func (w *sketcher) write(b []byte) bool {
	for _, c := range b {
		if c < ' ' {
			w.mark(c)
		}
		w.buf[w.n] = c
		w.n++
		w.rolling = w.rolling<<1 + gear[c]
		if w.n >= minChunk && w.rolling&cutMask == 0 || w.n == MaxChunk {
			w.cut()
		}
		if len(w.s.Chunks) == SketchChunks || w.total+w.n >= SketchBytes {
			w.cut()
			return false
		}
	}
	return true
}

// mark is called before a control character, which only markers are.
func (w *sketcher) mark(c byte) {
	if w.inRole {
		w.endRole()
	}
	switch c {
	case markTool, markFunction, markMessage, markText, markResult, markCall, markPrompt:
		w.cut()
		w.inRole = c == markMessage
	}
}

// endRole decides which field a message is, which its role says.
func (w *sketcher) endRole() {
	w.inRole = false
	switch {
	case w.asked:
		w.field = FieldLater
	case string(w.buf[1:w.n]) == "user":
		w.field, w.asked = FieldUser, true
	default:
		w.field = FieldSystem
	}
}

func (w *sketcher) cut() {
	if w.inRole { // longer than a chunk, or the prompt's end
		w.endRole()
	}
	if w.n == 0 || len(w.s.Chunks) == SketchChunks {
		return
	}
	w.s.Chunks = append(w.s.Chunks, Chunk{uint32(xxh3.HashSeed(w.buf[:w.n], w.s.Seed)), uint16(w.n), w.field})
	w.total += w.n
	w.n, w.rolling = 0, 0
}
