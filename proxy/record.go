package proxy

import (
	"time"

	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// Record describes a finished request, for metrics, logs and receipts. The record, its slices and
// its Decision are valid only during the Observer's call.
type Record struct {
	Start    time.Time // when the whole request had arrived
	ID       []byte
	Method   []byte
	Path     []byte // without the query
	Kind     prompt.Kind
	Model    []byte
	Stream   bool // the client asked for a stream
	Unparsed bool // the body could not be parsed: refused, or routed by load

	Status   int            // sent to the client; StatusClientGone if it left first
	Failed   policy.Failure // how the last attempt ended
	Broken   bool           // the response was cut short after its head
	Attempts int            // backends tried; 0 if none was available
	Resent   int            // sends repeated because a pooled connection was stale

	// Decision is the receipt of the last attempt, nil if there was none; Backend names its
	// backend.
	Decision *policy.Decision
	Backend  string

	Body          [][]byte // as sent, in pieces; empty once a stream has begun
	RequestBytes  int      // body bytes as received
	ResponseBytes int64    // body bytes as sent
	PromptBytes   int      // in canonical form
	// Tokens as the engine counted them; -1 if unknown.
	PromptTokens, CachedTokens, OutputTokens int

	// Overhead is the router's own time before dispatch, over all attempts: headers, parsing,
	// picking.
	Overhead time.Duration
	// Queue is the time from arrival to the last dispatch; 0 if there was none.
	Queue time.Duration
	// TTFT is the time from arrival to a stream's first token, or to the first byte of a relayed
	// response without tokens, or to the end of a response that is read whole; 0 if none came.
	TTFT  time.Duration
	Total time.Duration
}

// StatusClientGone is the Record's status, after nginx, of a request whose client left before the
// answer.
const StatusClientGone = 499
