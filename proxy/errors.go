package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"github.com/valyala/fasthttp"
)

// fault is an error for a client.
type fault struct {
	status  int
	code    string // stable, for programs
	message string // holds nothing of the request but the model's name
}

type dialect uint8

const (
	openAI dialect = iota
	responses
	anthropic
	either // unknown path: both APIs' clients can read it
)

func dialectOf(path []byte) dialect {
	switch {
	case bytes.HasPrefix(path, []byte("/v1/messages")):
		return anthropic
	case bytes.HasPrefix(path, []byte("/v1/responses")):
		return responses
	}
	return openAI
}

// errorTypes holds the special types of OpenAI and Anthropic.
var errorTypes = map[int][2]string{
	fasthttp.StatusUnauthorized:          {"invalid_request_error", "authentication_error"},
	fasthttp.StatusForbidden:             {"invalid_request_error", "permission_error"},
	fasthttp.StatusNotFound:              {"not_found_error", "not_found_error"},
	fasthttp.StatusRequestTimeout:        {"invalid_request_error", "timeout_error"},
	fasthttp.StatusRequestEntityTooLarge: {"invalid_request_error", "request_too_large"},
	fasthttp.StatusTooManyRequests:       {"rate_limit_error", "rate_limit_error"},
	fasthttp.StatusServiceUnavailable:    {"server_error", "overloaded_error"},
	fasthttp.StatusGatewayTimeout:        {"server_error", "timeout_error"},
}

func errorType(status int, d dialect) string {
	types, ok := errorTypes[status]
	switch {
	case ok:
	case status >= 500:
		types = [2]string{"server_error", "api_error"}
	default:
		types = [2]string{"invalid_request_error", "invalid_request_error"}
	}
	if d == anthropic || d == either {
		return types[1]
	}
	return types[0]
}

// Clients expect param, which is always null here.
type (
	envelope struct {
		Type  string `json:"type,omitempty"`
		Error any    `json:"error"`
	}
	openAIError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	anthropicError struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	responsesEvent struct {
		Type     string      `json:"type"`
		Code     string      `json:"code"`
		Message  string      `json:"message"`
		Param    *string     `json:"param"`
		Sequence int         `json:"sequence_number"`
		Error    openAIError `json:"error"`
	}
)

func (f fault) body(d dialect) []byte {
	kind := errorType(f.status, d)
	e := envelope{Error: openAIError{Message: f.message, Type: kind, Code: f.code}}
	if d == anthropic {
		e.Error = anthropicError{kind, f.message}
	}
	if d == anthropic || d == either {
		e.Type = "error"
	}
	return marshal(e)
}

func (f fault) event(path []byte) []byte {
	d := dialectOf(path)
	head, data := "event: error\ndata: ", f.body(d)
	switch d {
	case openAI:
		head = "data: "
	case responses:
		data = marshal(responsesEvent{Type: "error", Code: f.code, Message: f.message,
			Error: openAIError{Message: f.message, Type: errorType(f.status, d), Code: f.code}})
	}
	return append(append([]byte(head), data...), "\n\n"...)
}

func marshal(v any) []byte {
	b, _ := json.Marshal(v) // cannot fail
	return b
}

func (f fault) answer(ctx *fasthttp.RequestCtx, d dialect) {
	ctx.Response.Reset()
	h := &ctx.Response.Header
	h.SetNoDefaultContentType(true)
	h.SetContentType("application/json")
	ctx.SetStatusCode(f.status)
	ctx.Response.SetBodyRaw(f.body(d))
}

func (e *exchange) refuse(f fault) {
	f.answer(e.ctx, dialectOf(e.path))
	e.decorate()
	e.rec.Status, e.rec.ResponseBytes = f.status, int64(len(e.ctx.Response.Body()))
}

func (e *exchange) retryAfter(seconds int) {
	e.ctx.Response.Header.Set("Retry-After", strconv.Itoa(seconds))
}

func quoted(model []byte) string {
	const longest = 200
	if len(model) > longest {
		return strconv.Quote(string(model[:longest]) + "...")
	}
	return strconv.Quote(string(model))
}

// refuseUnread answers a request that could not be read, if any byte came.
func refuseUnread(ctx *fasthttp.RequestCtx, err error) {
	f := fault{fasthttp.StatusBadRequest, "bad_request", "the request is malformed"}
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		f = fault{fasthttp.StatusRequestEntityTooLarge, "body_too_large", "the request body is larger than this router accepts"}
	case errors.As(err, &small):
		f = fault{fasthttp.StatusRequestHeaderFieldsTooLarge, "headers_too_large", "the request headers are larger than this router accepts"}
	case errors.Is(err, errBodyMemory):
		f = fault{fasthttp.StatusServiceUnavailable, "body_memory", "the router's memory for request bodies is full: try again"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		f = fault{fasthttp.StatusRequestTimeout, "request_timeout", "the request did not arrive in time"}
	}
	conn := ctx.Conn().(*clientConn)
	if !conn.heard {
		conn.muted = true
		return
	}
	conn.lingering = true
	f.answer(ctx, either)
	if f.status == fasthttp.StatusServiceUnavailable {
		ctx.Response.Header.Set("Retry-After", "1")
	}
}

var errAborted = errors.New("response aborted")
