// Package prompt turns the body of an inference request into prompt bytes and their block hashes.
// Prompt bytes are a canonical form of the prompt: bodies that render to the same engine prompt
// have equal prompt bytes, and more text or another message only appends. DESIGN.md gives the
// format.
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

// String returns the kind's name in metrics and receipts.
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
	// MaxBody is the longest body that is parsed, in bytes: tape offsets have 31 bits, and the
	// arena can grow to four times the body.
	MaxBody = 256 << 20

	// MaxDepth bounds the nesting of arrays and objects, and so the parser's stack to tens of KiB.
	// Real tool schemas stay below 30.
	MaxDepth = 256
)

// Error says why a body cannot be parsed. The caller decides whether to forward the request.
type Error struct {
	Offset int    // in bytes
	Reason string // constant text, never part of the body
}

func (e *Error) Error() string { return fmt.Sprintf("prompt: %s at byte %d", e.Reason, e.Offset) }

// Request is what a body says. Slices point into the body or the parser and are valid until the
// next Parse.
type Request struct {
	Kind  Kind
	Model []byte // decoded; nil if absent
	LoRA  []byte // decoded lora_path (SGLang); nil if absent

	Stream    bool
	MaxTokens int // bound on output tokens; 0 if absent

	// Session is the first present of session_id, user, user_id, session_params.session_id (or
	// .id), metadata.user_id, prompt_cache_key; nil if all are absent.
	Session []byte

	// UsageAsked says that the body sets stream_options.include_usage.
	UsageAsked bool

	Hashes      []prefixtree.Hash // full blocks, root to leaf; empty after an error
	PromptBytes int               // 0 after an error

	// Edits change the body as Options ask, and request the usage of a stream if the client does
	// not. Empty after an error.
	Edits []Edit
	// UsageAdded says that Edits request the usage, so the router must remove it from the answer.
	// Only streamed chats and completions get that edit, and not those with continuous_usage_stats,
	// which would then add usage to every chunk.
	UsageAdded bool
}

// Parser parses bodies; once warm it does not allocate. Not safe for concurrent use.
type Parser struct {
	hasher *prefixtree.Hasher
	chain  prefixtree.Chain
	media  digest

	body  []byte
	pos   int
	depth int
	level int // content parts within content parts
	kind  Kind
	bad   Error

	tape    tape
	members []member // stack of the objects being scanned
	spans   []span   // scratch of arrangeMembers
	table   []int32  // scratch of uniqueHashed
	texts   []byte   // decoded strings of the Request

	blank    bool // the last part was an empty text
	inSystem bool // within a system prompt outside the messages

	slots [slotCount]span
	root  [rootCount]op
	ctl   controls

	opt    Options
	inside int     // offset of the body object's first member
	rest   remains // of the body object's members
	edits  []Edit
	head   []byte // scratch: text put in front of the first member
	salt   []byte
}

// NewParser returns a parser that hashes with h.
func NewParser(h *prefixtree.Hasher) *Parser {
	return &Parser{hasher: h}
}

// Parse scans body once and fills r. An error is an *Error; r then holds what was found before it,
// without hashes and edits. Parse does not read bodies of kind Other and does not keep o.Tenant.
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
	salted := rootCount // index of the root string that the tenant's salt replaces; rootCount if none
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

// PromptBytes returns everything that a body's hashes depend on: the root strings, each ended by a
// zero byte, then the prompt bytes. The caller owns the slice. It serves tests.
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
