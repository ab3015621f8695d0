// Package prompt turns the body of an inference request into prompt bytes and block hashes. Bodies
// that render to the same engine prompt have equal prompt bytes; more text or messages only append.
// DESIGN.md gives the format.
package prompt

import (
	"fmt"

	"grapevine/prefixtree"
)

// Kind is the API that a request uses.
type Kind uint8

// The kinds. Bodies of kind Other are not parsed.
const (
	Other Kind = iota
	Chat
	Completion
	Responses
	Embeddings
	Messages
	CountTokens
	Generate
	Tokenize
	Detokenize
	Score
	Rerank
	Pooling

	kinds
)

var kindNames = [kinds]string{"other", "chat", "completion", "responses", "embeddings", "messages", "count_tokens",
	"generate", "tokenize", "detokenize", "score", "rerank", "pooling"}

// String returns the name used in metrics and receipts.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// KindOf returns the kind served at a path without query, or Other.
func KindOf(path []byte) Kind {
	switch string(path) {
	case "/v1/chat/completions":
		return Chat
	case "/v1/completions":
		return Completion
	case "/v1/responses":
		return Responses
	case "/v1/embeddings":
		return Embeddings
	case "/v1/messages":
		return Messages
	case "/v1/messages/count_tokens":
		return CountTokens
	case "/generate":
		return Generate
	case "/tokenize":
		return Tokenize
	case "/detokenize":
		return Detokenize
	case "/score", "/v1/score":
		return Score
	case "/rerank", "/v1/rerank", "/v2/rerank":
		return Rerank
	case "/pooling":
		return Pooling
	}
	return Other
}

const (
	// MaxBody is the longest parsed body, in bytes: tape offsets have 31 bits, and the arena can
	// take four times the body.
	MaxBody = 256 << 20

	// MaxDepth bounds nesting, and so the stack. Real tool schemas stay below 30.
	MaxDepth = 256
)

// Error says why a body cannot be parsed; the caller decides whether to forward it.
type Error struct {
	Offset int
	Reason string // never part of the body
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("prompt: %s at byte %d", e.Reason, e.Offset) }

// Request is what a body says. Slices are valid until the next Parse.
type Request struct {
	Kind  Kind
	Model []byte // nil if absent
	LoRA  []byte // lora_path (SGLang); nil if absent

	Stream    bool
	MaxTokens int // of output; 0 if absent

	// Session is the first of session_id, user, user_id, session_params.session_id (or .id),
	// metadata.user_id, prompt_cache_key.
	Session []byte

	// UsageAsked says that the body sets include_usage.
	UsageAsked bool

	Hashes      []prefixtree.Hash // full blocks, root to leaf; empty after an error
	PromptBytes int

	// Edits are those that Options ask for, and the request for a stream's usage. Empty after an
	// error.
	Edits []Edit
	// UsageAdded says that Edits request the usage of a streamed chat or completion, so the router
	// must remove it from the answer. Not with continuous_usage_stats, which would add usage to
	// every chunk.
	UsageAdded bool
}

// Parser parses bodies, once warm without allocating. Not safe for concurrent use.
type Parser struct {
	hasher *prefixtree.Hasher
	chain  prefixtree.Chain
	media  digest

	body  []byte
	pos   int
	depth int
	level int // nested content parts
	kind  Kind
	bad   Error

	tape    tape
	members []member // stack of the objects being scanned
	spans   []span   // scratch
	table   []int32  // scratch
	texts   []byte   // scratch

	blank    bool // the last part was an empty text
	inSystem bool // in a system prompt outside the messages

	slots [slotCount]span
	root  [rootCount]op
	ctl   controls

	opt    Options
	inside int // offset of the first member
	rest   remains
	edits  []Edit
	head   []byte // scratch
	salt   []byte
}

// NewParser returns a parser that hashes with h.
func NewParser(h *prefixtree.Hasher) *Parser {
	return &Parser{hasher: h}
}

// Parse scans body once and fills r. After an *Error, r has no hashes and edits. Bodies of kind
// Other are not read.
func (p *Parser) Parse(k Kind, body []byte, o Options, r *Request) error {
	*r = Request{Kind: k}
	if k == Other {
		return nil
	}
	ok := p.scan(k, body, o)
	p.opt.Tenant = nil
	p.fill(r)
	if !ok {
		bad := p.bad
		return &bad
	}
	salted := rootCount // the root that the salt replaces; rootCount if none
	p.salt = p.salt[:0]
	if len(o.Tenant) > 0 {
		salted = rootSalt
		if saltMember(k) == "extra_key" {
			salted = rootExtra
		}
		p.salt = p.hasher.Salt(p.salt, o.Tenant, p.tape.bytes(p.root[salted]))
	}
	p.finishEdits(r)
	c := &p.chain
	c.Reset(p.hasher)
	for i, o := range p.root {
		if i == salted {
			c.Root(p.salt)
		} else {
			c.Root(p.tape.bytes(o))
		}
	}
	for _, s := range p.slots {
		for _, o := range p.tape.ops[s.from:s.to] {
			c.Write(p.tape.bytes(o))
		}
	}
	r.Hashes = c.Hashes()
	r.PromptBytes = c.Len()
	return nil
}

// PromptBytes returns what a body's hashes depend on: the root strings, each ended by a zero byte,
// and the prompt bytes. For tests.
func (p *Parser) PromptBytes(k Kind, body []byte) ([]byte, error) {
	if k == Other {
		return nil, nil
	}
	if !p.scan(k, body, Options{Control: true}) {
		bad := p.bad
		return nil, &bad
	}
	var dst []byte
	for _, o := range p.root {
		dst = append(dst, p.tape.bytes(o)...)
		dst = append(dst, 0)
	}
	for _, s := range p.slots {
		dst = p.tape.appendTo(dst, s)
	}
	return dst, nil
}

func (p *Parser) scan(k Kind, body []byte, o Options) bool {
	p.opt, p.edits = o, p.edits[:0]
	p.tape.reset(body)
	if 32*cap(p.members)+16*cap(p.spans)+4*cap(p.table)+cap(p.texts) > keepBytes {
		p.members, p.spans, p.table, p.texts = nil, nil, nil, nil
	}
	p.body, p.pos, p.depth, p.level, p.kind = body, 0, 0, 0, k
	p.members, p.texts = p.members[:0], p.texts[:0]
	p.slots, p.root, p.ctl = [slotCount]span{}, [rootCount]op{}, controls{}
	if len(body) > MaxBody {
		return p.fail(MaxBody, "body too long")
	}
	if p.peek() != '{' {
		return p.fail(p.pos, "body is not a JSON object")
	}
	if !p.top() {
		return false
	}
	p.peek()
	if p.pos < len(body) {
		return p.fail(p.pos, "bytes after the body's object")
	}
	return true
}
