package proxy

import (
	"time"

	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// Record describes a finished request, during the Observer's call only.
type Record struct {
	Start    time.Time // when the request was complete
	ID       []byte
	Method   []byte
	Path     []byte // without the query
	Kind     prompt.Kind
	Model    []byte
	Stream   bool
	Unparsed bool // refused, or routed by load

	Status   int            // StatusClientGone if the client left first
	Failed   policy.Failure // of the last attempt
	Broken   bool
	Attempts int
	Resent   int // sends repeated after a stale connection

	// Decision is the last attempt's receipt, or nil.
	Decision *policy.Decision
	Backend  string

	Body          [][]byte // as sent; empty once a stream has begun
	RequestBytes  int      // as received
	ResponseBytes int64    // as sent
	PromptBytes   int
	// Tokens by the engine's count; -1 if unknown.
	PromptTokens, CachedTokens, OutputTokens int

	// Overhead is the router's own time.
	Overhead time.Duration
	// Queue lasts until the last dispatch.
	Queue time.Duration
	// TTFT lasts until a stream's first token, a relayed body's first byte, or the end of a body
	// read whole.
	TTFT  time.Duration
	Total time.Duration
}

// StatusClientGone, as in nginx, means that the client left before the answer.
const StatusClientGone = 499
