package traces

import (
	"cmp"
	"encoding/binary"
	"strings"
	"time"
	"unicode/utf8"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/prompt"
)

// maxText bounds, in bytes, what a client writes into a span: its model, path and request id.
const maxText = 256

// message is a Protobuf message of OpenTelemetry's opentelemetry/proto/trace/v1/trace.proto that grows. Field numbers are constants of the
// place that writes them, below 16: so a tag is one byte.
type message []byte

// The wire types of Protobuf.
const (
	varint  = 0
	fixed64 = 1
	bounded = 2 // by a length in front
)

func (m *message) tag(field, wire byte) { *m = append(*m, field<<3|wire) }

func (m *message) varint(field byte, value uint64) {
	m.tag(field, varint)
	*m = binary.AppendUvarint(*m, value)
}

func (m *message) time(field byte, t time.Time) {
	m.tag(field, fixed64)
	*m = binary.LittleEndian.AppendUint64(*m, uint64(t.UnixNano()))
}

func (m *message) id(field byte, id []byte) {
	m.tag(field, bounded)
	*m = append(append(*m, byte(len(id))), id...)
}

func (m *message) text(field byte, s string) {
	m.tag(field, bounded)
	*m = append(binary.AppendUvarint(*m, uint64(len(s))), s...)
}

// begin opens a message inside this one; end closes it and writes its length. A varint may have more bytes than it needs: so the length
// takes width bytes, 7 bits in each, and nothing has to be moved.
func (m *message) begin(field, width byte) (body int) {
	m.tag(field, bounded)
	*m = append(*m, 0, 0, 0, 0)[:len(*m)+int(width)]
	return len(*m)
}

func (m message) end(body int, width byte) {
	size, length := len(m)-body, m[body-int(width):body]
	for i := range length {
		length[i] = byte(size>>(7*i)) | 0x80
	}
	length[width-1] &= 0x7f
}

// The widths of begin: a span is at most some 5 KB long, and a batch maxWaiting and a span.
const (
	short = 2
	long  = 4
)

// key opens an attribute, in field 9 of a span, 3 of an event or 1 of a resource, and its value; close closes both.
func (m *message) key(field byte, name string) (attribute, value int) {
	attribute = m.begin(field, short)
	m.text(1, name)
	return attribute, m.begin(2, short)
}

func (m message) close(attribute, value int) {
	m.end(value, short)
	m.end(attribute, short)
}

// words leaves out an empty value, and replaces what is not UTF-8.
func words[T string | []byte](m *message, field byte, name string, value T) {
	if len(value) == 0 {
		return
	}
	attribute, inner := m.key(field, name)
	value = value[:min(len(value), maxText)]
	for i := range len(value) {
		if value[i] >= utf8.RuneSelf {
			m.text(1, strings.ToValidUTF8(string(value), "\ufffd"))
			m.close(attribute, inner)
			return
		}
	}
	m.tag(1, bounded)
	*m = append(binary.AppendUvarint(*m, uint64(len(value))), value...)
	m.close(attribute, inner)
}

// number leaves out a negative value, which means unknown.
func (m *message) number(field byte, name string, value int) {
	if value < 0 {
		return
	}
	attribute, inner := m.key(field, name)
	m.varint(3, uint64(value))
	m.close(attribute, inner)
}

// finished is what a span needs of a request. Spans are written many at a time: written at the end of each request, by code that is then
// in no cache of the processor, one took 5 us instead of 0.4.
type finished struct {
	trace    proxy.Trace
	start    time.Time
	parsed   time.Duration
	waited   time.Duration
	picked   time.Duration
	queue    time.Duration
	ttft     time.Duration
	total    time.Duration
	status   int
	attempts int
	size     int // of the prompt, in bytes
	matched  int
	prompt   int
	cached   int
	output   int
	client   string
	backend  string
	prefill  string
	refused  string
	kind     prompt.Kind
	failed   books.Failure
	rung     string
	broken   bool
	lengths  [textsOf]uint16 // of the texts
}

// The texts of a request, whose memory is not its record's.
const (
	method = iota
	urlPath
	model
	target
	requestID
	textsOf // how many
)

// spanSize is about what a span takes without its texts, in bytes.
const spanSize = 600

// finish appends a request and its texts.
func finish(list []finished, memory []byte, r *proxy.Record) ([]finished, []byte) {
	f := finished{
		trace: r.Trace, start: r.Start, parsed: r.Parsed, waited: r.Waited, picked: r.Picked, queue: r.Queue, ttft: r.TTFT, total: r.Total,
		status: r.Status, attempts: r.Attempts, size: r.PromptBytes, matched: r.MatchedTokens, prompt: r.PromptTokens, cached: r.CachedTokens,
		output: r.OutputTokens, client: r.Client, backend: r.Backend, prefill: r.Prefill.Backend, refused: cmp.Or(r.Refused, r.Limit),
		kind: r.Kind, failed: r.Failed, broken: r.Broken,
	}
	if r.Decision != nil {
		f.rung = r.Decision.Rung.String()
	}
	for i, text := range [textsOf][]byte{method: r.Method, urlPath: r.Path, model: r.Model, target: r.Target, requestID: r.ID} {
		text = text[:min(len(text), maxText)]
		f.lengths[i] = uint16(len(text))
		memory = append(memory, text...)
	}
	return append(list, f), memory
}

func appendSpans(dst []byte, list []finished, memory []byte) []byte {
	for i := range list {
		var own [textsOf][]byte
		for k, n := range list[i].lengths {
			own[k], memory = memory[:n], memory[n:]
		}
		dst = appendSpan(dst, &list[i], &own)
	}
	return dst
}

// appendSpan adds field 2 of ScopeSpans.
func appendSpan(dst []byte, f *finished, own *[textsOf][]byte) []byte {
	m := message(dst)
	span := m.begin(2, short)
	m.id(1, f.trace.ID[:])
	m.id(2, f.trace.Span[:])
	if f.trace.Parent != [8]byte{} {
		m.id(4, f.trace.Parent[:])
	}
	m.text(5, f.kind.String())
	m.varint(6, 2) // SPAN_KIND_SERVER
	m.time(7, f.start)
	m.time(8, f.start.Add(f.total))
	m.attributes(f, own)
	m.events(f)
	if f.status >= 500 || f.broken {
		status := m.begin(15, short)
		m.varint(3, 2) // STATUS_CODE_ERROR
		m.end(status, short)
	}
	m.end(span, short)
	return m
}

// attributes have the names of OpenTelemetry's conventions where there is one.
func (m *message) attributes(f *finished, own *[textsOf][]byte) {
	words(m, 9, "http.request.method", own[method])
	words(m, 9, "url.path", own[urlPath])
	m.number(9, "http.response.status_code", f.status)
	words(m, 9, "gen_ai.request.model", own[model])
	words(m, 9, "gen_ai.response.model", own[target])
	m.number(9, "gen_ai.usage.input_tokens", f.prompt)
	m.number(9, "gen_ai.usage.cache_read.input_tokens", f.cached)
	m.number(9, "gen_ai.usage.output_tokens", f.output)
	m.number(9, "grapevine.prompt_bytes", f.size)
	words(m, 9, "grapevine.request_id", own[requestID])
	words(m, 9, "grapevine.client", f.client)
	m.number(9, "grapevine.attempts", f.attempts)
	words(m, 9, "grapevine.prefill_backend", f.prefill)
	words(m, 9, "grapevine.refused", f.refused)
	if f.failed != books.None {
		words(m, 9, "error.type", f.failed.String())
	}
}

// events are those of the last attempt.
func (m *message) events(f *finished) {
	m.event(f, "parsed", f.parsed)
	if f.waited > 0 {
		m.event(f, "queued", f.parsed)
	}
	m.event(f, picked, f.picked)
	m.event(f, "dispatched", f.queue)
	m.event(f, "first_byte", f.ttft)
}

const picked = "picked"

// event leaves out what did not happen.
func (m *message) event(f *finished, name string, at time.Duration) {
	if at == 0 {
		return
	}
	event := m.begin(11, short)
	m.time(1, f.start.Add(at))
	m.text(2, name)
	if name == picked {
		words(m, 3, "grapevine.rung", f.rung)
		m.number(3, "grapevine.matched_tokens", f.matched)
		words(m, 3, "grapevine.backend", f.backend)
	}
	m.end(event, short)
}
