package proxy

import (
	"time"

	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// Record is one finished request: what metrics, logs and receipts are made of. It is valid during the Observer's call
// only, and so are its slices and its Decision.
type Record struct {
	Start    time.Time // when the request had arrived
	ID       []byte    // request id
	Method   []byte
	Path     []byte // without the query
	Kind     prompt.Kind
	Model    []byte
	Stream   bool // a stream was asked for
	Unparsed bool // the body was not understood: refused, or routed by load

	Status   int            // sent to the client; 499 if it left before any was
	Failed   policy.Failure // how the last attempt ended
	Broken   bool           // the response was cut short after its head
	Attempts int            // backends tried; 0 if none was to be had
	Resent   int            // times the request was sent again because a reused connection had gone stale

	// Decision is the receipt of the last attempt, nil if there was none. Backend names its backend.
	Decision *policy.Decision
	Backend  string

	Body          [][]byte // of the request as it was sent, in pieces; empty once a stream has begun
	RequestBytes  int      // as received
	ResponseBytes int64    // body as sent
	PromptBytes   int      // canonical
	// Tokens as the engine counts them, -1 where it did not say.
	PromptTokens, CachedTokens, OutputTokens int

	Overhead time.Duration // reading headers, parsing, picking, of all attempts: the router's own time before dispatch
	Queue    time.Duration // arrival to the dispatch of the last attempt; 0 if there was none
	TTFT     time.Duration // arrival to the first token of a stream, or to the head of another response; 0 if neither came
	Total    time.Duration
}

// StatusClientGone is the Record's status of a request whose client left before it was answered, after nginx.
const StatusClientGone = 499
