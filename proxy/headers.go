package proxy

import (
	"bytes"
	"math/rand/v2"

	"github.com/valyala/fasthttp"
)

const (
	headerRequestID = "X-Request-Id"
	headerNode      = "X-Grapevine-Node"
	headerBackend   = "X-Grapevine-Backend"
	headerRoute     = "X-Grapevine-Route"
	headerRetry     = "X-Should-Retry"
)

const (
	maxRequestID  = 128 // longer ones are replaced: they go into logs
	maxNominated  = 16  // names one Connection header may list
	longestKnown  = 32  // no header name that is looked for is longer
	noSession     = 1 << 10
	forwardedName = "x-forwarded-for"

	sessionID       = "x-session-id"
	sessionAffinity = "x-session-affinity"
	claudeSession   = "x-claude-code-session-id"
	codexSession    = "session-id"
	codexThread     = "thread-id"
)

// requestHead is what the proxy takes from a request's headers, and the headers it passes on. Slices are views into
// the request.
type requestHead struct {
	block     []byte // the end-to-end headers as lines, in their order and spelling; scratch of the exchange
	nominated [maxNominated][]byte
	nominees  int

	id            []byte
	session       []byte
	sessionRank   int
	forwarded     []byte // the client's own X-Forwarded-For
	authorization []byte
	apiKey        []byte
	encoded       bool // Content-Encoding: the body is not to be parsed
	lengths       int  // Content-Length lines
	announced     int  // by the last of them
	codings       int  // Transfer-Encoding lines
	badCoding     bool // another coding than chunked
	fault         string
}

// scan reads raw, the header lines as they came, in one pass. plainAnswer leaves Accept-Encoding out, so that the answer
// can be learned from. A fault is a reason to refuse the request.
//
// The lines are read again rather than taken from fasthttp's parse, which normalizes names, drops one of
// Content-Length and Transfer-Encoding when both are given, and joins folded lines.
func (h *requestHead) scan(raw []byte, plainAnswer bool) {
	*h = requestHead{block: h.block[:0], sessionRank: noSession}
	for len(raw) > 0 {
		end := bytes.IndexByte(raw, '\n')
		if end < 0 {
			end = len(raw) - 1
		}
		line, crlf := bytes.CutSuffix(raw[:end], []byte("\r"))
		raw = raw[end+1:]
		if !crlf {
			h.fault = "lines of the head must end with CR LF"
			return
		}
		if len(line) == 0 {
			return
		}
		colon := bytes.IndexByte(line, ':')
		switch {
		case line[0] == ' ' || line[0] == '\t':
			h.fault = "header lines may not be folded"
			return
		case colon <= 0 || bytes.IndexByte(line[:colon], ' ') >= 0:
			h.fault = "malformed header name"
			return
		}
		name, value := line[:colon], bytes.TrimSpace(line[colon+1:])
		if h.take(name, value, plainAnswer) {
			h.block = appendHeader(h.block, name, value)
		}
		if h.fault != "" {
			return
		}
	}
}

// take notes what a header says and reports whether it is to be passed on.
func (h *requestHead) take(name, value []byte, plainAnswer bool) bool {
	var scratch [longestKnown]byte
	switch string(lower(&scratch, name)) {
	case "connection":
		h.nominate(value)
		return false
	case "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade", "expect", "host", "http2-settings":
		return false // of this hop, or written anew
	case "content-length":
		h.lengths++
		if n, err := fasthttp.ParseUint(value); err == nil {
			h.announced = n
		}
		return false
	case "transfer-encoding":
		h.codings++
		h.badCoding = h.badCoding || !bytes.EqualFold(value, []byte("chunked"))
		return false
	case "accept-encoding":
		return !plainAnswer
	case "content-encoding":
		h.encoded = !bytes.EqualFold(value, []byte("identity"))
	case "x-request-id":
		if fitID(value) {
			h.id = value
		}
		return false
	case forwardedName:
		h.forwarded = value // of several lines the last: the one nearest to us
		return false
	case "authorization":
		h.authorization = value
	case "x-api-key":
		h.apiKey = value
	case sessionID:
		h.claimSession(0, value)
	case sessionAffinity:
		h.claimSession(1, value)
	case claudeSession:
		h.claimSession(2, value)
	case codexSession:
		h.claimSession(3, value)
	case codexThread:
		h.claimSession(4, value)
	}
	return true
}

// sessionHeaders are what agents send already, the most deliberate first: x-session-id is the convention of routers,
// x-session-affinity OpenCode's, the next Claude Code's, the last two Codex's.
var sessionHeaders = [...]string{sessionID, sessionAffinity, claudeSession, codexSession, codexThread}

// sessionOf returns the session key among headers given by name.
func sessionOf(header func(name string) []byte) []byte {
	for _, name := range sessionHeaders {
		if value := header(name); len(value) > 0 {
			return value
		}
	}
	return nil
}

func (h *requestHead) claimSession(rank int, value []byte) {
	if rank < h.sessionRank && len(value) > 0 {
		h.session, h.sessionRank = value, rank
	}
}

// nominate notes the names that a Connection header makes hop-by-hop.
func (h *requestHead) nominate(value []byte) {
	for len(value) > 0 {
		var token []byte
		token, value, _ = bytes.Cut(value, []byte(","))
		token = bytes.TrimSpace(token)
		if len(token) == 0 || bytes.EqualFold(token, []byte("close")) || bytes.EqualFold(token, []byte("keep-alive")) {
			continue
		}
		if h.nominees == len(h.nominated) {
			h.fault = "too many connection options"
			return
		}
		h.nominated[h.nominees] = token
		h.nominees++
	}
}

// lower returns name in lower case with hyphens for underscores, as gateways rewrite names both ways; nil for a name
// longer than any that is looked for.
func lower(dst *[longestKnown]byte, name []byte) []byte {
	if len(name) > len(dst) {
		return nil
	}
	for i, c := range name {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c = '-'
		}
		dst[i] = c
	}
	return dst[:len(name)]
}

func fitID(id []byte) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for _, c := range id {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// mintID appends a new request id, 32 hexadecimal digits.
func mintID(dst []byte) []byte {
	const digits = "0123456789abcdef"
	for range 2 {
		for bits, i := rand.Uint64(), 0; i < 16; i++ {
			dst = append(dst, digits[bits&15])
			bits >>= 4
		}
	}
	return dst
}

func appendHeader(dst, name, value []byte) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// appendRequest appends the head of the request to a target.
func (e *exchange) appendRequest(dst []byte, t *Target, length int) []byte {
	dst = append(dst, e.ctx.Method()...)
	dst = append(dst, ' ')
	dst = append(dst, t.BasePath...)
	dst = append(dst, e.target...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	if t.Host != "" {
		dst = append(dst, t.Host...)
	} else {
		dst = append(dst, t.Addr...)
	}
	dst = append(dst, "\r\n"...)
	if e.head.nominees == 0 && len(t.Header) == 0 {
		dst = append(dst, e.head.block...)
	} else {
		dst = e.appendFiltered(dst, t)
	}
	dst = append(dst, "X-Request-Id: "...)
	dst = append(dst, e.head.id...)
	if len(e.conn.forwarded) > 0 {
		dst = append(dst, "\r\nX-Forwarded-For: "...)
		if len(e.head.forwarded) > 0 {
			dst = append(dst, e.head.forwarded...)
			dst = append(dst, ", "...)
		}
		dst = append(dst, e.conn.forwarded...)
	}
	if length > 0 || e.head.lengths+e.head.codings > 0 {
		dst = append(dst, "\r\nContent-Length: "...)
		dst = fasthttp.AppendUint(dst, length)
	}
	return append(dst, "\r\n\r\n"...)
}

// appendFiltered appends the block without the headers of this hop and those that the target sets, and then these.
func (e *exchange) appendFiltered(dst []byte, t *Target) []byte {
	block := e.head.block
	for len(block) > 0 {
		end := bytes.IndexByte(block, '\n') + 1
		line := block[:end]
		block = block[end:]
		name := line[:bytes.IndexByte(line, ':')]
		if !e.head.dropped(name) && !sets(t, name) {
			dst = append(dst, line...)
		}
	}
	for _, kv := range t.Header {
		dst = append(dst, kv[0]...)
		dst = append(dst, ": "...)
		dst = append(dst, kv[1]...)
		dst = append(dst, "\r\n"...)
	}
	return dst
}

func (h *requestHead) dropped(name []byte) bool {
	for _, n := range h.nominated[:h.nominees] {
		if bytes.EqualFold(n, name) {
			return true
		}
	}
	return false
}

func sets(t *Target, name []byte) bool {
	for i := range t.Header {
		if bytes.EqualFold([]byte(t.Header[i][0]), name) {
			return true
		}
	}
	return false
}

// hopByHop are the response headers that belong to the backend's connection.
var hopByHop = []string{"Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Upgrade", "Trailer", "Te"}

// cleanResponse makes the backend's response head the client's. It reports whether the backend keeps its connection
// open.
func cleanResponse(h *fasthttp.ResponseHeader) (keep bool) {
	keep = !h.ConnectionClose()
	if options := h.Peek("Connection"); len(options) > 0 && keep {
		// The names are read before anything is deleted, since deleting moves the bytes they lie in.
		for name := range bytes.SplitSeq(bytes.Clone(options), []byte(",")) {
			name = bytes.TrimSpace(name)
			if bytes.EqualFold(name, []byte("close")) {
				keep = false
			} else if len(name) > 0 && !framing(name) {
				h.DelBytes(name)
			}
		}
	}
	h.Del("Connection")
	h.ResetConnectionClose()
	for _, name := range hopByHop {
		h.Del(name)
	}
	h.SetProtocol(protocol11)
	return keep
}

var protocol11 = []byte("HTTP/1.1")

// framing reports whether a header says where the body ends. A backend cannot nominate these away.
func framing(name []byte) bool {
	return bytes.EqualFold(name, []byte("content-length")) || bytes.EqualFold(name, []byte("transfer-encoding"))
}
