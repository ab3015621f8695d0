package ledger

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"

	"grapevine/prefixtree"
)

// Stamp is what a session id tells the nodes that follow the engine about the request that stored blocks.
type Stamp struct {
	ID    uint64          // of the request; nodes draw it at random, 48 bits
	End   prefixtree.Hash // the mark at the end of the prompt
	Block prefixtree.Hash // the last full block of the text; 0: none
	Bytes int             // of the prompt
}

// Stamps writes and checks stamps. Immutable.
//
//	stamp   "gv1." and in base64url without padding: id (6 bytes), end (8), block (8), prompt bytes (4), check (4); little-endian
//
// The check is the beginning of SHA-256 over the key and the rest, so that a client cannot name another text's blocks.
type Stamps struct{ key [sha256.Size]byte }

const (
	stampPrefix  = "gv1."
	stampVersion = "grapevine stamp 1"
	stampBody    = 6 + 8 + 8 + 4
	stampBytes   = stampBody + 4
	// StampLen is the length of a stamp in bytes.
	StampLen = len(stampPrefix) + (stampBytes*8+5)/6
)

// NewStamps takes the fleet's hashing secret.
func NewStamps(secret []byte) *Stamps {
	return &Stamps{sha256.Sum256(append([]byte(stampVersion), secret...))}
}

func (s *Stamps) check(body []byte) (sum [4]byte) {
	var words [sha256.Size + stampBody]byte // of fixed length, so that no stamp extends another
	copy(words[copy(words[:], s.key[:]):], body)
	full := sha256.Sum256(words[:])
	copy(sum[:], full[:])
	return sum
}

// Append writes a stamp of StampLen bytes of letters, digits, dots, hyphens and underscores.
func (s *Stamps) Append(dst []byte, t Stamp) []byte {
	var raw [stampBytes + 2]byte
	binary.LittleEndian.PutUint64(raw[0:], t.ID)
	binary.LittleEndian.PutUint64(raw[6:], uint64(t.End))
	binary.LittleEndian.PutUint64(raw[14:], uint64(t.Block))
	binary.LittleEndian.PutUint32(raw[22:], uint32(t.Bytes))
	sum := s.check(raw[:stampBody])
	copy(raw[stampBody:], sum[:])
	dst = append(dst, stampPrefix...)
	return base64.RawURLEncoding.AppendEncode(dst, raw[:stampBytes])
}

// Parse reads a session id. It returns false for one that no node of the fleet wrote.
func (s *Stamps) Parse(session []byte) (t Stamp, ok bool) {
	if len(session) != StampLen || string(session[:len(stampPrefix)]) != stampPrefix {
		return t, false
	}
	var raw [stampBytes]byte
	if _, err := base64.RawURLEncoding.Decode(raw[:], session[len(stampPrefix):]); err != nil {
		return t, false
	}
	sum := s.check(raw[:stampBody])
	if subtle.ConstantTimeCompare(sum[:], raw[stampBody:]) == 0 {
		return t, false
	}
	return Stamp{
		ID:    binary.LittleEndian.Uint64(raw[0:]) & maxID,
		End:   prefixtree.Hash(binary.LittleEndian.Uint64(raw[6:])),
		Block: prefixtree.Hash(binary.LittleEndian.Uint64(raw[14:])),
		Bytes: int(binary.LittleEndian.Uint32(raw[22:])),
	}, true
}

const maxID = 1<<48 - 1
