package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"grapevine.example/chaos/workload"
)

type outcome struct {
	req        *workload.Request
	sent       time.Duration
	firstToken time.Duration
	end        time.Duration

	// From the answer's usage and headers; -1 or empty: absent.
	prompt, cached, output int
	predicted              int
	rung, backend, node    string
	retries                int

	text string
	err  *Error
}

// Class groups failures by remedy. Further classes are http_ and a status.
type Class string

const (
	Connect   Class = "connect"
	Timeout   Class = "timeout"
	Reset     Class = "reset"
	Truncated Class = "truncated"
	InStream  Class = "in_stream" // an error event in a stream that had begun
	Malformed Class = "malformed"
	Overflow  Class = "overflow"
	Cancelled Class = "cancelled"
)

func statusClass(status int) Class { return Class("http_" + strconv.Itoa(status)) }

// Error is a failed request.
type Error struct {
	Class Class
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Class, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// classify names an error of sending or reading. If run, the context of the whole run, has ended,
// it is a cancellation; a deadline is the request's.
func classify(run context.Context, err error) *Error {
	var own *Error
	var op *net.OpError
	switch {
	case run.Err() != nil:
		return &Error{Cancelled, err}
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Timeout, err}
	case errors.As(err, &op) && op.Op == "dial":
		return &Error{Connect, err}
	case errors.As(err, &op), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &Error{Reset, err}
	default:
		return &Error{Malformed, err}
	}
}
