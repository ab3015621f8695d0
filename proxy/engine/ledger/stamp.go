package ledger

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"

	"grapevine.example/prefixtree"
)

// Stamp is what a session id tells the nodes that follow the engine about the request that stored blocks.
type Stamp struct {
	ID    uint64          // of the request; nodes draw it at random, 48 bits
	End   prefixtree.Hash // the mark at the end of the prompt
	Block prefixtree.Hash // the last full block of the text; 0: none
	Bytes int             // of the prompt
	// Inner are marks within the prompt, in order, at which other prompts most often part from it; see InnerMarks.
	Inner [mostInner]prefixtree.Mark // hash 0: none
}

const mostInner = 3

// InnerMarks returns what a stamp tells of a prompt's marks, of which the last one is its end: the end of the first message, which often
// many prompts share, and the ends of the last two messages before the end, where the turn before ended and its answer did. Between the
// first two of three, messages are left out.
func InnerMarks(marks []prefixtree.Mark) (inner [mostInner]prefixtree.Mark) {
	if marks = marks[:len(marks)-1]; len(marks) > mostInner {
		inner[0] = marks[0]
		copy(inner[1:], marks[len(marks)-(mostInner-1):])
		return inner
	}
	copy(inner[:], marks)
	return inner
}

// Stamps writes and checks stamps. Immutable.
//
//	stamp   "gv1." and in base64url without padding: id (6 bytes), end (8), block (8), prompt bytes (4); of up to three inner marks the hash (8)
//	        and the bytes (4); check (4); little-endian
//
// The check is the beginning of SHA-256 over the key and the rest, so that a client cannot name another text's blocks.
type Stamps struct{ key [sha256.Size]byte }

const (
	stampPrefix  = "gv1."
	stampVersion = "grapevine stamp 1"
	stampBody    = 6 + 8 + 8 + 4
	stampMark    = 8 + 4
	stampCheck   = 4
	mostBody     = stampBody + mostInner*stampMark
	// MaxStamp is the length of the longest stamp in bytes.
	MaxStamp = len(stampPrefix) + (mostBody+stampCheck)*4/3
)

// NewStamps takes the fleet's hashing secret.
func NewStamps(secret []byte) *Stamps {
	return &Stamps{sha256.Sum256(append([]byte(stampVersion), secret...))}
}

func (s *Stamps) check(body []byte) (sum [stampCheck]byte) {
	var words [sha256.Size + mostBody]byte // of fixed length, so that no stamp extends another but by marks of hash 0, which are none
	copy(words[copy(words[:], s.key[:]):], body)
	full := sha256.Sum256(words[:])
	copy(sum[:], full[:])
	return sum
}

// Append writes a stamp of at most MaxStamp letters, digits, dots, hyphens and underscores.
func (s *Stamps) Append(dst []byte, t Stamp) []byte {
	raw := make([]byte, 0, mostBody+stampCheck+2)
	raw = binary.LittleEndian.AppendUint64(raw, t.ID)[:6]
	raw = binary.LittleEndian.AppendUint64(raw, uint64(t.End))
	raw = binary.LittleEndian.AppendUint64(raw, uint64(t.Block))
	raw = binary.LittleEndian.AppendUint32(raw, uint32(t.Bytes))
	for _, m := range t.Inner {
		if m.Hash != 0 {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(m.Hash))
			raw = binary.LittleEndian.AppendUint32(raw, uint32(m.Bytes))
		}
	}
	sum := s.check(raw)
	return base64.RawURLEncoding.AppendEncode(append(dst, stampPrefix...), append(raw, sum[:]...))
}

// Parse reads a session id. It returns false for one that no node of the fleet wrote.
func (s *Stamps) Parse(session []byte) (t Stamp, ok bool) {
	if len(session) < len(stampPrefix) || len(session) > MaxStamp || string(session[:len(stampPrefix)]) != stampPrefix {
		return t, false
	}
	var all [mostBody + stampCheck]byte
	n, err := base64.RawURLEncoding.Decode(all[:], session[len(stampPrefix):])
	if n -= stampCheck; err != nil || n < stampBody || (n-stampBody)%stampMark != 0 {
		return t, false
	}
	raw := all[:n]
	sum := s.check(raw)
	if subtle.ConstantTimeCompare(sum[:], all[n:n+stampCheck]) == 0 {
		return t, false
	}
	t = Stamp{
		ID:    binary.LittleEndian.Uint64(raw) & maxID,
		End:   prefixtree.Hash(binary.LittleEndian.Uint64(raw[6:])),
		Block: prefixtree.Hash(binary.LittleEndian.Uint64(raw[14:])),
		Bytes: int(binary.LittleEndian.Uint32(raw[22:])),
	}
	for i, m := 0, raw[stampBody:]; len(m) > 0; i, m = i+1, m[stampMark:] {
		t.Inner[i] = prefixtree.Mark{Hash: prefixtree.Hash(binary.LittleEndian.Uint64(m)), Bytes: int(binary.LittleEndian.Uint32(m[8:]))}
	}
	return t, true
}

const maxID = 1<<48 - 1
