package proxy

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// maxRename bounds, in bytes, the value of a member model that is held back until it is complete.
const maxRename = 1 << 10

// renamer gives answers the model that the client asked for, where engines know it by another name. It changes the member model of
// a JSON object and of its members message and response, where OpenAI's and Anthropic's APIs have it, if the value is the engine's
// name. All else passes as it is, in pieces of any size.
type renamer struct {
	from, to []byte // the engine's name and the client's
	lines    bool   // of an event stream: objects stand in data lines

	field int  // bytes of the line that were compared with dataField
	skip  bool // to the end of the line: it is another field
	depth int
	inner bool // the object at depth 2 is a message or a response

	inString, escaped bool
	collect           bool   // the string is the value of a member model
	text              []byte // the string so far: a value, or the first bytes of any other
	member            []byte // the last string, which is a member's name if a colon follows
	named             bool   // a colon followed: the next string is a value of member

	out []byte
}

const dataField = "data:"

func (r *renamer) reset(from, to []byte, lines bool) {
	*r = renamer{from: from, to: to, lines: lines, text: r.text[:0], member: r.member[:0], out: reuse(r.out)}
}

// feed returns what to send of a piece, valid until the next call.
func (r *renamer) feed(piece []byte) []byte {
	r.out = r.out[:0]
	for _, c := range piece {
		switch {
		case r.lines && c == '\n':
			r.giveUp()
			r.field, r.skip, r.depth, r.inString, r.escaped, r.named = 0, false, 0, false, false, false
			r.out = append(r.out, c)
		case r.lines && r.field < len(dataField):
			r.skip = r.skip || c != dataField[r.field]
			r.field++
			r.out = append(r.out, c)
		case r.skip:
			r.out = append(r.out, c)
		case r.inString:
			r.inText(c)
		default:
			r.between(c)
			r.out = append(r.out, c)
		}
	}
	return r.out
}

// whole returns what to send of a complete body.
func (r *renamer) whole(body []byte) []byte {
	r.feed(body)
	r.giveUp()
	return r.out
}

// giveUp ends a value, which stays as it is unless it was exchanged.
func (r *renamer) giveUp() {
	if r.collect {
		r.out, r.collect = append(r.out, r.text...), false
	}
}

// inText takes a byte of a string.
func (r *renamer) inText(c byte) {
	ends := c == '"' && !r.escaped
	r.escaped = c == '\\' && !r.escaped
	switch {
	case ends && r.collect:
		if bytes.Equal(r.text, r.from) {
			r.text = append(r.text[:0], r.to...)
		}
		r.giveUp()
	case ends:
		r.member = append(r.member[:0], r.text...)
	case r.collect || len(r.text) <= len("response"):
		r.text = append(r.text, c)
	}
	r.inString = !ends
	switch {
	case !r.collect:
		r.out = append(r.out, c)
	case len(r.text) > maxRename:
		r.giveUp()
	}
}

// between takes a byte outside strings.
func (r *renamer) between(c byte) {
	switch c {
	case '"':
		r.inString, r.text = true, r.text[:0]
		r.collect = r.named && string(r.member) == "model" && (r.depth == 1 || r.depth == 2 && r.inner)
	case ':':
		r.named = true
		return
	case '{', '[':
		if r.depth++; r.depth == 2 {
			r.inner = c == '{' && r.named && (string(r.member) == "message" || string(r.member) == "response")
		}
	case '}', ']':
		r.depth--
	}
	r.named = r.named && (c == ' ' || c == '\t' || c == '\n' || c == '\r')
}

// startRename prepares to rename the model in an answer, if the client knows it by another name and the body can say it.
func (e *exchange) startRename(h *fasthttp.ResponseHeader) {
	e.renaming = len(e.rec.Target) > 0 && isPlain(e.rec.Model)
	if e.renaming = e.renaming && len(h.ContentEncoding()) == 0 && (e.sse || isJSON(h.ContentType())); e.renaming {
		e.renamer.reset(e.rec.Target, e.rec.Model, e.sse)
	}
}

// isPlain reports whether JSON holds a name as it is.
func isPlain(name []byte) bool {
	for _, c := range name {
		if c < ' ' || c == '"' || c == '\\' {
			return false
		}
	}
	return len(name) > 0
}

func isJSON(contentType []byte) bool {
	const json = "application/json"
	return len(contentType) >= len(json) && bytes.EqualFold(contentType[:len(json)], []byte(json))
}
