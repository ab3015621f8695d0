package traces

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
)

// maxText bounds, in bytes, what a client writes into a span: its model, path and request id.
const maxText = 256

// object is JSON that grows.
type object []byte

func (b *object) raw(parts ...string) {
	for _, s := range parts {
		*b = append(*b, s...)
	}
}

// comma separates what follows, unless it is the first of a list.
func (b *object) comma() {
	if (*b)[len(*b)-1] != '[' {
		b.raw(",")
	}
}

func (b *object) key(name, kind string) {
	b.comma()
	b.raw(`{"key":"`, name, `","value":{"`, kind, `":`)
}

// text leaves out an empty value.
func text[T string | []byte](b *object, key string, value T) {
	if len(value) == 0 {
		return
	}
	b.key(key, "stringValue")
	quote(b, value)
	b.raw("}}")
}

// number leaves out a negative value, which means unknown.
func (b *object) number(key string, value int) {
	if value < 0 {
		return
	}
	b.key(key, "intValue")
	b.integer(int64(value))
	b.raw("}}")
}

// integer: Protobuf's JSON has 64-bit integers as strings.
func (b *object) integer(value int64) {
	b.raw(`"`)
	*b = strconv.AppendInt(*b, value, 10)
	b.raw(`"`)
}

func quote[T string | []byte](b *object, s T) {
	s = s[:min(len(s), maxText)]
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(string(s)) // replaces what is not UTF-8; cannot fail
			*b = append(*b, quoted...)
			return
		}
	}
	*b = append(append(append(*b, '"'), s...), '"')
}

func appendSpan(dst []byte, r *proxy.Record) []byte {
	b := object(dst)
	b.raw(`{"traceId":"`)
	b = hex.AppendEncode(b, r.Trace.ID[:])
	b.raw(`","spanId":"`)
	b = hex.AppendEncode(b, r.Trace.Span[:])
	if r.Trace.Parent != [8]byte{} {
		b.raw(`","parentSpanId":"`)
		b = hex.AppendEncode(b, r.Trace.Parent[:])
	}
	b.raw(`","name":"`, r.Kind.String(), `","kind":2,"startTimeUnixNano":`) // SPAN_KIND_SERVER
	b.integer(r.Start.UnixNano())
	b.raw(`,"endTimeUnixNano":`)
	b.integer(r.Start.Add(r.Total).UnixNano())
	b.raw(`,"attributes":[`)
	b.attributes(r)
	b.raw(`],"events":[`)
	b.events(r)
	b.raw("]")
	if r.Status >= 500 || r.Broken {
		b.raw(`,"status":{"code":2}`) // STATUS_CODE_ERROR
	}
	b.raw("}")
	return b
}

// attributes have the names of OpenTelemetry's conventions where there is one.
func (b *object) attributes(r *proxy.Record) {
	text(b, "http.request.method", r.Method)
	text(b, "url.path", r.Path)
	b.number("http.response.status_code", r.Status)
	text(b, "gen_ai.request.model", r.Model)
	text(b, "gen_ai.response.model", r.Target)
	b.number("gen_ai.usage.input_tokens", r.PromptTokens)
	b.number("gen_ai.usage.cache_read.input_tokens", r.CachedTokens)
	b.number("gen_ai.usage.output_tokens", r.OutputTokens)
	b.number("grapevine.prompt_bytes", r.PromptBytes)
	text(b, "grapevine.request_id", r.ID)
	text(b, "grapevine.client", r.Client)
	b.number("grapevine.attempts", r.Attempts)
	text(b, "grapevine.prefill_backend", r.Prefill.Backend)
	text(b, "grapevine.refused", cmp.Or(r.Refused, r.Limit))
	if r.Failed != policy.None {
		text(b, "error.type", r.Failed.String())
	}
}

// events are those of the last attempt.
func (b *object) events(r *proxy.Record) {
	b.event(r, "parsed", r.Parsed)
	if r.Waited > 0 {
		b.event(r, "queued", r.Parsed)
	}
	b.event(r, picked, r.Picked)
	b.event(r, "dispatched", r.Queue)
	b.event(r, "first_byte", r.TTFT)
}

const picked = "picked"

// event leaves out what did not happen.
func (b *object) event(r *proxy.Record, name string, at time.Duration) {
	if at == 0 {
		return
	}
	b.comma()
	b.raw(`{"name":"`, name, `","timeUnixNano":`)
	b.integer(r.Start.Add(at).UnixNano())
	if name == picked {
		b.raw(`,"attributes":[`)
		text(b, "grapevine.rung", r.Decision.Rung.String())
		b.number("grapevine.matched_tokens", r.MatchedTokens)
		text(b, "grapevine.backend", r.Backend)
		b.raw("]")
	}
	b.raw("}")
}
