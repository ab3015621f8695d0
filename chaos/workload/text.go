package workload

// BytesPerToken is the text length per token, about that of English in current vocabularies and
// exactly that of the emulated engine.
const BytesPerToken = 4

// Role is the message role of a segment.
type Role uint8

const (
	System Role = iota
	User
	Assistant
)

func (r Role) String() string {
	switch r {
	case System:
		return "system"
	case User:
		return "user"
	default:
		return "assistant"
	}
}

// Segment is one message of a prompt.
type Segment struct {
	Role   Role
	Tokens int
	// ReplyOf is the turn of this session whose actual reply stands here; 0 for text of
	// [Request.AppendText]. Live load generators keep the replies, because an engine has cached its
	// actual output.
	ReplyOf int

	key    uint64
	blocks bool // the text of the request's keys and tail, rather than of key
}

// Segments returns the prompt as messages: for a generated session the shared prefix (system), then
// the user's texts and the replies; for a trace one user message. The slice is shared and must not
// be written to.
func (r *Request) Segments() []Segment { return r.segments }

// AppendText appends the text of one of r's segments, BytesPerToken bytes per token. Equal leading
// keys give equal leading text. A reply appends nothing.
func (r *Request) AppendText(dst []byte, s Segment) []byte {
	if s.ReplyOf > 0 {
		return dst
	}
	if !s.blocks {
		return Text(dst, s.key, s.Tokens)
	}
	for _, k := range r.Keys {
		dst = Text(dst, k, r.KeyTokens)
	}
	return Text(dst, r.tail, r.PromptTokens-len(r.Keys)*r.KeyTokens)
}

const (
	consonants = "bcdfghjklmnprstv"
	vowels     = "aeio"
)

// Text appends the pseudo-text of key, BytesPerToken * tokens bytes of ASCII: three-letter words
// and some line feeds, which alone need a JSON escape. A shorter text is a prefix of a longer one.
// A word carries 10 bits, so that texts of two keys differ within the first few.
func Text(dst []byte, key uint64, tokens int) []byte {
	var bits uint64
	for i := range tokens {
		if i%4 == 0 {
			bits = mix(key, uint64(i))
		}
		w := bits & 0xffff
		bits >>= 16
		end := byte(' ')
		if w>>10 == 63 {
			end = '\n'
		}
		dst = append(dst, consonants[w&15], vowels[w>>4&3], consonants[w>>6&15], end)
	}
	return dst
}
