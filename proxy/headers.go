package proxy

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/clients"
)

const (
	headerRequestID = "X-Request-Id"
	headerNode      = "X-Grapevine-Node"
	headerBackend   = "X-Grapevine-Backend"
	headerPrefill   = "X-Grapevine-Prefill"
	headerRoute     = "X-Grapevine-Route"
	headerRetry     = "X-Should-Retry"
	headerSession   = "X-Session-Id"
	headerRetryMS   = "Retry-After-Ms" // of OpenAI's and Anthropic's clients, which prefer it to Retry-After
)

// ResponseHeaders says which X-Grapevine headers clients receive.
type ResponseHeaders uint8

const (
	// NoHeaders sends none.
	NoHeaders ResponseHeaders = iota
	// RouteHeader sends X-Grapevine-Route. Without tenants its numbers of tokens let a client guess
	// another's prompt piece by piece.
	RouteHeader
	// AllHeaders adds the names of node and backend, by default internal addresses.
	AllHeaders
)

// ParseResponseHeaders reads "none", "route" or "all".
func ParseResponseHeaders(s string) (ResponseHeaders, error) {
	for i, name := range [...]string{"none", "route", "all"} {
		if s == name {
			return ResponseHeaders(i), nil
		}
	}
	return NoHeaders, errors.New("response headers: want none, route or all")
}

const (
	maxRequestID = 128 // longer ids are replaced, since ids are logged
	maxNominated = 16  // names per request
	longestKnown = 40  // of the header names that take knows
)

// requestHead's slices point into the request, except scratch.
type requestHead struct {
	block     []byte // scratch: end-to-end header lines as received
	nominated [maxNominated][]byte
	nominees  int

	id          []byte
	key         []byte // of the client
	session     []byte
	sessionRank int
	agent       []byte
	talk        []byte // scratch
	forwarded   []byte // scratch: X-Forwarded-For values, joined
	trace       []byte // traceparent
	traceState  []byte // scratch: tracestate values, joined; only with scanOptions.traced
	websocket   bool
	encoded     bool // the body is compressed
	lengths     int  // Content-Length lines
	announced   int  // by the last of them
	codings     int  // Transfer-Encoding lines
	badCoding   bool // not chunked
	fault       string
}

type scanOptions struct {
	plainAnswer bool // drop Accept-Encoding, so that the answer is readable
	control     bool // keep headers that steer engines
	ranked      bool // keep the priority for engines
	takeKey     bool // clients' keys are for the router, not for engines
	traced      bool // the router may write a traceparent of its own
}

// scan reads raw lines: fasthttp's parser joins folded lines, and drops Content-Length or
// Transfer-Encoding if both are given.
func (h *requestHead) scan(raw []byte, o scanOptions) {
	*h = requestHead{block: h.block[:0], forwarded: h.forwarded[:0], talk: h.talk[:0], traceState: h.traceState[:0], sessionRank: len(sessionHeaders)}
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
		if h.take(name, value, o) {
			h.block = appendHeader(h.block, name, value)
		}
		if h.fault != "" {
			return
		}
	}
}

// take reports whether to pass a header on. Names with underscores are dropped, because engines may
// read X_Forwarded_For as X-Forwarded-For, except Codex's session keys.
func (h *requestHead) take(name, value []byte, o scanOptions) bool {
	var scratch [longestKnown]byte
	known, underscored := lower(&scratch, name)
	if underscored {
		return h.takeSession(known, value)
	}
	if !o.control && steersByHeader(name) {
		return false
	}
	switch string(known) {
	case "x-vllm-priority":
		return o.ranked
	case "connection":
		h.nominate(value)
		return false
	case "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "expect", "host", "http2-settings":
		return false // hop-by-hop, or written anew
	case "upgrade":
		h.websocket = h.websocket || bytes.Contains(bytes.ToLower(value), []byte("websocket"))
		return false
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
		return !o.plainAnswer
	case "authorization", "x-api-key":
		if !o.takeKey {
			return true
		}
		if len(h.key) == 0 {
			h.key = keyIn(known, value)
		}
		return false
	case "content-encoding":
		h.encoded = !bytes.EqualFold(value, []byte("identity"))
	case "x-request-id":
		if fitID(value) {
			h.id = value
		}
		return false
	case "traceparent":
		h.trace = value
		return !o.traced
	case "tracestate":
		if !o.traced {
			return true
		}
		if len(h.traceState) > 0 {
			h.traceState = append(h.traceState, ',')
		}
		h.traceState = append(h.traceState, value...)
		return false
	case "x-forwarded-for":
		if len(h.forwarded) > 0 {
			h.forwarded = append(h.forwarded, ", "...)
		}
		h.forwarded = append(h.forwarded, value...)
		return false
	default:
		h.takeSession(known, value)
	}
	return true
}

func (h *requestHead) takeSession(name, value []byte) bool {
	if string(name) == agentHeader {
		h.agent = value
		return true
	}
	for rank, known := range sessionHeaders {
		if string(name) == known {
			if rank < h.sessionRank && len(value) > 0 {
				h.session, h.sessionRank = value, rank
			}
			return true
		}
	}
	return false
}

// Prefixes by which vLLM, SGLang and llm-d's sidecar choose where to compute or fetch KV blocks.
var steeringHeaders = [...][]byte{[]byte("x-data-parallel-"), []byte("x-override-"), []byte("x-prefiller-"), []byte("x-encoder-hosts-")}

func steersByHeader(name []byte) bool {
	return name[0]|0x20 == 'x' && slices.ContainsFunc(steeringHeaders[:], func(prefix []byte) bool {
		return len(name) >= len(prefix) && bytes.EqualFold(name[:len(prefix)], prefix)
	})
}

// Most specific first: an agent that Codex starts shares the session-id, not the thread-id.
var sessionHeaders = [...]string{"x-session-id", "x-session-affinity", claudeSession, "thread-id", "session-id"}

// Agents of one Claude Code session have conversations of their own, and names that other sessions
// also use. Headers that name a parent are not read: a child that goes on from its parent's prompt
// is found by the prompt, and another has no use for the parent's cache.
const (
	claudeSession = "x-claude-code-session-id"
	agentHeader   = "x-claude-code-agent-id"
)

// conversation returns the key of the conversation that the headers name, valid until the next scan.
func (h *requestHead) conversation() []byte {
	if h.sessionRank == len(sessionHeaders) || sessionHeaders[h.sessionRank] != claudeSession || len(h.agent) == 0 {
		return h.session
	}
	h.talk = append(h.talk[:0], h.session...)
	h.talk = append(h.talk, '\n') // cannot occur in a value
	h.talk = append(h.talk, h.agent...)
	return h.talk
}

func sessionOf(header func(name string) []byte) []byte {
	h := requestHead{sessionRank: len(sessionHeaders)}
	for _, name := range append([]string{agentHeader}, sessionHeaders[:]...) {
		h.takeSession([]byte(name), header(name))
	}
	return h.conversation()
}

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

// lower replaces underscores by hyphens; nil if name is longer than known names.
func lower(dst *[longestKnown]byte, name []byte) (known []byte, underscored bool) {
	if len(name) > len(dst) {
		return nil, bytes.IndexByte(name, '_') >= 0
	}
	for i, c := range name {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c, underscored = '-', true
		}
		dst[i] = c
	}
	return dst[:len(name)], underscored
}

func fitID(id []byte) bool {
	return len(id) > 0 && len(id) <= maxRequestID && !slices.ContainsFunc(id, func(c byte) bool {
		return c <= ' ' || c > '~' || c == '"' || c == '\\'
	})
}

func mintID(dst []byte) []byte {
	var id [16]byte
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	return hex.AppendEncode(dst, id[:])
}

func appendHeader[T []byte | string](dst []byte, name, value T) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

func (h *requestHead) dropped(name []byte) bool {
	return slices.ContainsFunc(h.nominated[:h.nominees], func(n []byte) bool { return bytes.EqualFold(n, name) })
}

func sets(own [][2]string, name []byte) bool {
	return slices.ContainsFunc(own, func(h [2]string) bool { return strings.EqualFold(h[0], string(name)) })
}

var hopByHop = []string{"Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Upgrade", "Trailer", "Te"}

// cleanResponse reports whether the backend keeps its connection open.
func cleanResponse(h *fasthttp.ResponseHeader) (keep bool) {
	keep = !h.ConnectionClose()
	if options := h.Peek("Connection"); len(options) > 0 && keep {
		// Deleting a header moves the bytes of options.
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

// A backend may not nominate the headers that delimit the body.
func framing(name []byte) bool {
	return bytes.EqualFold(name, []byte("content-length")) || bytes.EqualFold(name, []byte("transfer-encoding"))
}

// Tenant says what identifies a tenant. Tenants share no cached prompts.
type Tenant struct {
	headers []string
	client  bool
}

func (t Tenant) none() bool { return len(t.headers) == 0 && !t.client }

// ByClient reports whether each client of the list is a tenant.
func (t Tenant) ByClient() bool { return t.client }

// ByCredential reports whether tenants differ in the keys that they send.
func (t Tenant) ByCredential() bool { return len(t.headers) > 1 }

var errTenant = errors.New("tenant: want none, client, credential or header:NAME, where NAME is a header that engines receive")

// ParseTenant reads "none", "client" (by Config.Clients), "credential" (Authorization and X-Api-Key)
// or "header:NAME", which clients must not be able to choose.
func ParseTenant(s string) (Tenant, error) {
	name, named := strings.CutPrefix(s, "header:")
	switch {
	case s == "" || s == "none":
		return Tenant{}, nil
	case s == "client":
		return Tenant{client: true}, nil
	case s == "credential":
		return Tenant{headers: []string{"Authorization", "X-Api-Key"}}, nil
	case !named:
		return Tenant{}, errTenant
	}
	var h requestHead
	h.scan([]byte(name+": x\r\n\r\n"), scanOptions{plainAnswer: true})
	if string(h.block) != name+": x\r\n" {
		return Tenant{}, errTenant
	}
	return Tenant{headers: []string{name}}, nil
}

// All lines of a name count, so that adding one cannot imitate another tenant.
func (t Tenant) of(dst []byte, client *clients.Client, lines []byte) []byte {
	if t.client && client != nil {
		return append(dst, client.Name...)
	}
	for _, name := range t.headers {
		dst = append(dst, '\n') // cannot occur in a value
		for line := range bytes.Lines(lines) {
			if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
				dst = append(dst, bytes.TrimSpace(line[len(name)+1:])...)
				dst = append(dst, 0)
			}
		}
	}
	return dst
}

func (t Tenant) lines(header func(name string) []byte) (lines []byte) {
	for _, name := range t.headers {
		if value := header(name); len(value) > 0 {
			lines = appendHeader(lines, []byte(name), value)
		}
	}
	return lines
}
