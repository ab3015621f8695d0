package traces

import (
	"cmp"
	"encoding/binary"
	"strings"
	"time"
	"unicode/utf8"

	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
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

// appendSpan adds field 2 of ScopeSpans.
func appendSpan(dst []byte, r *proxy.Record) []byte {
	m := message(dst)
	span := m.begin(2, short)
	m.id(1, r.Trace.ID[:])
	m.id(2, r.Trace.Span[:])
	if r.Trace.Parent != [8]byte{} {
		m.id(4, r.Trace.Parent[:])
	}
	m.text(5, r.Kind.String())
	m.varint(6, 2) // SPAN_KIND_SERVER
	m.time(7, r.Start)
	m.time(8, r.Start.Add(r.Total))
	m.attributes(r)
	m.events(r)
	if r.Status >= 500 || r.Broken {
		status := m.begin(15, short)
		m.varint(3, 2) // STATUS_CODE_ERROR
		m.end(status, short)
	}
	m.end(span, short)
	return m
}

// attributes have the names of OpenTelemetry's conventions where there is one.
func (m *message) attributes(r *proxy.Record) {
	words(m, 9, "http.request.method", r.Method)
	words(m, 9, "url.path", r.Path)
	m.number(9, "http.response.status_code", r.Status)
	words(m, 9, "gen_ai.request.model", r.Model)
	words(m, 9, "gen_ai.response.model", r.Target)
	m.number(9, "gen_ai.usage.input_tokens", r.PromptTokens)
	m.number(9, "gen_ai.usage.cache_read.input_tokens", r.CachedTokens)
	m.number(9, "gen_ai.usage.output_tokens", r.OutputTokens)
	m.number(9, "grapevine.prompt_bytes", r.PromptBytes)
	words(m, 9, "grapevine.request_id", r.ID)
	words(m, 9, "grapevine.client", r.Client)
	m.number(9, "grapevine.attempts", r.Attempts)
	words(m, 9, "grapevine.prefill_backend", r.Prefill.Backend)
	words(m, 9, "grapevine.refused", cmp.Or(r.Refused, r.Limit))
	if r.Failed != policy.None {
		words(m, 9, "error.type", r.Failed.String())
	}
}

// events are those of the last attempt.
func (m *message) events(r *proxy.Record) {
	m.event(r, "parsed", r.Parsed)
	if r.Waited > 0 {
		m.event(r, "queued", r.Parsed)
	}
	m.event(r, picked, r.Picked)
	m.event(r, "dispatched", r.Queue)
	m.event(r, "first_byte", r.TTFT)
}

const picked = "picked"

// event leaves out what did not happen.
func (m *message) event(r *proxy.Record, name string, at time.Duration) {
	if at == 0 {
		return
	}
	event := m.begin(11, short)
	m.time(1, r.Start.Add(at))
	m.text(2, name)
	if name == picked {
		words(m, 3, "grapevine.rung", r.Decision.Rung.String())
		m.number(3, "grapevine.matched_tokens", r.MatchedTokens)
		words(m, 3, "grapevine.backend", r.Backend)
	}
	m.end(event, short)
}
