// Package prompt turns the body of an inference request into prompt bytes and block hashes. Bodies
// that render to the same engine prompt have equal prompt bytes. See DESIGN.md.
package prompt

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
)

// Kind is the API that a request uses.
type Kind uint8

// Bodies of kind Other are not parsed.
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
	// MaxBody bounds parsed bodies, in bytes: tape offsets have 31 bits, and the arena can take
	// four times the body.
	MaxBody = 256 << 20

	// MaxDepth bounds the stack. Real tool schemas stay below 30.
	MaxDepth = 256
)

// Error says why a body cannot be parsed.
type Error struct {
	Offset int
	Reason string // never part of the body
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("prompt: %s at byte %d", e.Reason, e.Offset) }

// Request is what a body says, valid until the next Parse.
type Request struct {
	Model []byte // nil if absent
	LoRA  []byte // lora_path (SGLang); nil if absent
	LoRAs bool   // lora_path names an adapter for each prompt of a batch

	Stream    bool
	MaxTokens int // of output; 0 if absent

	// Session is the first of session_id, user, user_id, session_params.session_id (or .id),
	// metadata.user_id, prompt_cache_key.
	Session []byte

	// SessionAt is where in the body a member session_id, with a comma behind it, may be inserted; 0: nowhere, since the client
	// gives its own, or session_params.
	SessionAt int

	// Previous is previous_response_id: the engine that stores this response has the rest of the
	// prompt. Nil if absent or not a string.
	Previous []byte

	Hashes      []prefixtree.Hash // full blocks, root to leaf; empty after an error
	Marks       []prefixtree.Mark // the ends of the messages and, last, of the prompt; the last 64 of them
	PromptBytes int

	// Members are the values of Options.Members in their order; nil if absent, null or not a text or number.
	Members [][]byte

	// Edits also request a stream's usage.
	Edits []Edit
	// UsageAdded says that the router must remove the usage from the answer. Not with
	// continuous_usage_stats, which adds usage to every chunk.
	UsageAdded bool
	// ResponseID is where in the text of Edits[0] the router puts the id of the response, over
	// ResponseIDLen bytes; -1: nowhere. See Options.NameResponse.
	ResponseID int

	// With Options.Split: whether one engine can compute the prompt and another the only reply, the
	// offset of the first member, and the edits that ask for the prompt and one token, not streamed.
	Splits  bool
	Inside  int
	Prefill []Edit
}

// Parser does not allocate once warm. Not safe for concurrent use.
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

	slots     [slotCount]span
	root      [rootCount]op
	model     span     // where the body has its model; empty: nowhere
	alias     []byte   // replaces it, if not nil
	aliasText []byte   // scratch
	kept      []op     // values of Options.Members
	texts     [][]byte // scratch
	ctl       controls

	opt    Options
	inside int // offset of the first member
	rest   remains
	edits  []Edit
	head   []byte // scratch
	salt   []byte
	split  splitting
}

// slot is a place in the prompt, in template order.
type slot uint8

const (
	slotTemplate slot = iota
	slotTemplateArgs
	slotDocuments
	slotReasoning
	slotEffort
	slotMediaArgs
	slotTruncate
	slotSpecial
	slotPrevious
	slotStored
	slotChoice
	slotImages
	slotAudio
	slotVideo
	slotTools
	slotFunctions
	slotSystem
	slotMessages
	slotFirst // first of a pair; B to D hold the same under other names
	slotFirstB
	slotFirstC
	slotFirstD
	slotPrompt
	slotIDs
	slotEmbeds
	slotSecond // likewise
	slotSecondB
	slotSecondC
	slotSecondD
	slotSuffix
	slotContinue
	slotGeneration

	slotCount
)

// Root strings affect every block.
const (
	rootModel = iota
	rootLoRA
	rootSalt
	rootExtra

	rootCount
)

type controls struct {
	stream       bool
	usage        bool // include_usage
	continuous   bool // continuous_usage_stats
	max          [4]int
	session      [6]op
	ask          ask
	optionsGiven bool
	named        bool // the client's request_id stays
	ownSession   bool // the client gives session_id or session_params
}

type ask struct {
	text     []byte
	from, to int
}

// remains tracks an object's members while some are cut.
type remains struct {
	end  int
	some bool // a member stays
}

// Edit replaces the bytes [From, To) of a body. Edits are ascending and do not overlap.
type Edit struct {
	From, To int
	Text     []byte
}

// Options say how to change a body.
type Options struct {
	Control bool
	// Unranked cuts priority, by which engines order what waits.
	Unranked bool
	// NameResponse makes room for an id in requests of kind Responses, and cuts the client's own
	// unless Control.
	NameResponse bool
	Split        bool // see Request.Splits
	// Tenant, if not empty, adds a salt made of it, the client's salt and the hasher's key.
	Tenant []byte
	// Members of the body, outside the prompt, to be read into Request.Members.
	Members []string
	// Follow, if not nil, gets a body that was read but not hashed, with the fields of Request up to Members, and returns the model to
	// ask engines for, which replaces the body's in the prompt bytes and by an edit; nil: the body's. JSON must
	// hold it as it is, and it stays unchanged until the next Parse.
	Follow func(r *Request) []byte
}

type member struct {
	key  op
	at   span
	hash uint64
}
