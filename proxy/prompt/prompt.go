// Package prompt turns the body of an inference request into prompt bytes and their block hashes.
//
// Prompt bytes are a canonical byte string that stands for what the engine's prefix cache is keyed by: bodies that
// render to the same engine prompt have the same prompt bytes, bodies with another meaning have others, and more
// text or another message only appends. DESIGN.md gives the format.
//
// The package does not tokenize, does not render chat templates, does not judge whether an engine would accept a
// request, and knows nothing of backends.
package prompt

import (
	"fmt"

	"grapevine/prefixtree"
)

// Kind is the API a request speaks.
type Kind uint8

// The kinds. Other is everything whose body is not looked at.
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

// String returns the kind's name as used in metrics and receipts.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// KindOf returns the kind served at a path (without the query), Other if it is unknown.
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
	// MaxBody is the longest body that is parsed, in bytes: tape offsets have 31 bits, and the arena can grow to
	// about four times the body.
	MaxBody = 256 << 20

	// MaxDepth is how deep arrays and objects may nest. Real tool schemas stay below 30; the bound keeps the
	// recursion of the parser within a few tens of KiB of stack.
	MaxDepth = 256
)

// Error says that a body was not understood. The request is still to be proxied: only the engine judges it.
type Error struct {
	Offset int    // bytes into the body
	Reason string // constant text, no part of the body
}

// Error describes the fault and where it is.
func (e *Error) Error() string { return fmt.Sprintf("prompt: %s at byte %d", e.Reason, e.Offset) }

// Request is what a body says. Slices are views into the body or the parser, valid until the next Parse.
type Request struct {
	Kind  Kind
	Model []byte // decoded; nil if not given
	LoRA  []byte // decoded lora_path (SGLang); nil if not given

	Stream    bool
	MaxTokens int // bound on output tokens; 0 = not given

	// Session is the body's session key, nil if none: the first given of session_id, user, user_id,
	// session_params.session_id (or .id), metadata.user_id, prompt_cache_key.
	Session []byte

	// UsageAsked says that stream_options.include_usage was true already.
	UsageAsked bool

	Hashes      []prefixtree.Hash // full blocks of the prompt bytes, root to leaf; empty after an error
	PromptBytes int               // 0 after an error

	// Edits change the body as the options of Parse ask for, and ask for the usage at the end of a
	// stream where the client did not. Empty after an error.
	Edits []Edit
	// UsageAdded says that the usage in the answer was not asked for by the client: it is ours to remove.
	// It is not asked for where the request does not stream or is neither chat nor completion, nor where
	// continuous_usage_stats is set without include_usage, which our asking would bring to life in
	// every chunk.
	UsageAdded bool
}

// Parser parses bodies. It holds the scratch, so that a warm one allocates nothing. One goroutine.
type Parser struct {
	hasher *prefixtree.Hasher
	chain  prefixtree.Chain
	media  digest

	body  []byte
	pos   int
	depth int // open arrays and objects
	level int // content parts within content parts
	kind  Kind
	bad   Error

	tape    tape
	members []member // stack of the objects being scanned
	spans   []span   // scratch of arrangeMembers
	table   []int32  // scratch of uniqueHashed
	texts   []byte   // decoded strings of the Request

	blank    bool // the part just scanned was an empty text
	inSystem bool // within a system prompt given outside the messages

	slots [slotCount]span
	root  [rootCount]op
	ctl   controls

	opt    Options
	inside int     // where the members of the body's object begin
	rest   remains // of its members
	edits  []Edit
	head   []byte // scratch: what is put in front of the first member
	salt   []byte // scratch
}

// NewParser returns a parser whose hashes are h's.
func NewParser(h *prefixtree.Hasher) *Parser {
	return &Parser{hasher: h}
}

// Parse scans body once and fills r. An error is an *Error; r then holds what was found before it, and neither hashes
// nor edits. For Other the body is not looked at. The options' Tenant is not kept.
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
	salted := rootCount // the root string that the tenant's salt replaces: none
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

// PromptBytes returns the root strings of a body, each ended by a zero byte, and its prompt bytes: all that its
// hashes depend on. The slice is the caller's. For tests and for explaining; Parse does not make it.
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

// scan reads the whole body onto the tape.
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
