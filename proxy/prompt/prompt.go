// Package prompt turns the body of an inference request into prompt bytes and block hashes. Bodies
// that render to the same engine prompt have equal prompt bytes; more text or messages only append.
// DESIGN.md gives the format.
package prompt

import (
	"fmt"

	"github.com/zeebo/xxh3"

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

var kindOf = map[string]Kind{
	"/v1/chat/completions":      Chat,
	"/v1/completions":           Completion,
	"/v1/responses":             Responses,
	"/v1/embeddings":            Embeddings,
	"/v1/messages":              Messages,
	"/v1/messages/count_tokens": CountTokens,
	"/generate":                 Generate,
	"/tokenize":                 Tokenize,
	"/detokenize":               Detokenize,
	"/score":                    Score,
	"/v1/score":                 Score,
	"/rerank":                   Rerank,
	"/v1/rerank":                Rerank,
	"/v2/rerank":                Rerank,
	"/pooling":                  Pooling,
}

// KindOf returns the kind served at a path without query, or Other.
func KindOf(path []byte) Kind { return kindOf[string(path)] }

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
	Model []byte // nil if absent
	LoRA  []byte // lora_path (SGLang); nil if absent

	Stream    bool
	MaxTokens int // of output; 0 if absent

	// Session is the first of session_id, user, user_id, session_params.session_id (or .id),
	// metadata.user_id, prompt_cache_key.
	Session []byte

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
	media  xxh3.Hasher

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
	*r = Request{}
	if k == Other {
		return nil
	}
	err := p.scan(k, body, o)
	p.opt.Tenant = nil
	p.fill(r)
	if err != nil {
		return err
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

func (p *Parser) scan(k Kind, body []byte, o Options) error {
	p.opt, p.edits = o, p.edits[:0]
	p.tape.reset(body)
	if 32*cap(p.members)+16*cap(p.spans)+4*cap(p.table) > keepBytes {
		p.members, p.spans, p.table = nil, nil, nil
	}
	p.body, p.pos, p.depth, p.level, p.kind = body, 0, 0, 0, k
	p.members, p.bad = p.members[:0], Error{}
	p.slots, p.root, p.ctl = [slotCount]span{}, [rootCount]op{}, controls{}
	switch {
	case len(body) > MaxBody:
		p.fail(MaxBody, "body too long")
	case p.peek() != '{':
		p.fail(p.pos, "body is not a JSON object")
	default:
		p.top()
		if p.peek(); p.pos < len(body) {
			p.fail(p.pos, "bytes after the body's object")
		}
	}
	if p.bad.Reason == "" {
		return nil
	}
	bad := p.bad
	return &bad
}
