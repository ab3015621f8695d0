package engine

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// script writes a reply as one API does: whole, or as server-sent events, which each of the other
// methods appends to dst; i is the seat.
type script interface {
	whole() object
	begin(dst []byte) []byte
	text(dst []byte, i int, from, to int) []byte
	stop(dst []byte, i int) []byte
	end(dst []byte) []byte
	fail(dst []byte, err *apiError) []byte
}

type told struct {
	c       *call
	f       *flight
	s       *Server
	id      string
	created int64
}

func (t told) script() script {
	switch t.c.endpoint {
	case endpointResponses:
		return newResponsesScript(t)
	case endpointMessages:
		return newMessagesScript(t)
	}
	return newChoicesScript(t)
}

func (t told) stream(w http.ResponseWriter, r *http.Request) {
	how, f, cfg := t.script(), t.f, &t.s.cfg
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	out := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = out.Flush() // the next write reports a failure
	sent, stopped := make([]int, len(f.seats)), make([]bool, len(f.seats))
	var buf []byte
	begun := false
	for left := len(f.seats); left > 0; {
		select {
		case <-f.notify:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
		buf = buf[:0]
		for i := range f.seats {
			p, err := f.state(i)
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the client has left or the engine is closing
			}
			if err != nil {
				_ = write(w, out, cfg.WriteTimeout, how.fail(buf, reason(err))) // ends here whether or not the write succeeds
				return
			}
			if stopped[i] || (p.tokens == 0 && !p.done) {
				continue
			}
			if !begun {
				begun, buf = true, how.begin(buf)
			}
			for sent[i] < p.tokens {
				to := min(sent[i]+cfg.TokensPerChunk, p.tokens)
				if to-sent[i] < cfg.TokensPerChunk && !p.done {
					break
				}
				buf = how.text(buf, i, sent[i], to)
				sent[i] = to
			}
			if p.done {
				stopped[i], buf = true, how.stop(buf, i)
				left--
			}
		}
		if left == 0 {
			buf = how.end(buf)
		}
		if len(buf) > 0 && write(w, out, cfg.WriteTimeout, buf) != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

func write(w http.ResponseWriter, out *http.ResponseController, timeout time.Duration, p []byte) error {
	_ = out.SetWriteDeadline(time.Now().Add(timeout)) // unsupported by test recorders, which do not block
	if _, err := w.Write(p); err != nil {
		return err
	}
	return out.Flush()
}

func (t *told) piece(i, from, to int) []byte {
	return t.f.seats[i].reply[from*TokenBytes : to*TokenBytes]
}

// event appends a server-sent event.
func event(dst []byte, body any) []byte {
	return append(append(append(dst, "data: "...), mustJSON(body)...), "\n\n"...)
}

// choicesScript streams chat chunks and, with legacy, completion chunks. Texts of replies need no
// escape, so that the event of each token is made of ready pieces.
type choicesScript struct {
	told
	legacy bool
	kind   string // of a whole answer
	head   string // up to the list of choices
	before string // between the index of a choice and its text
	after  string
}

func newChoicesScript(t told) *choicesScript {
	x := &choicesScript{
		legacy: t.c.endpoint == endpointCompletion, kind: "chat.completion", before: `,"delta":{"content":"`, after: `"},"logprobs":null,"finish_reason":null}]}` + "\n\n",
	}
	prefix, chunk := "chatcmpl-", "chat.completion.chunk"
	if x.legacy {
		prefix, x.kind, chunk = "cmpl-", "text_completion", "text_completion"
		x.before, x.after = `,"text":"`, `","logprobs":null,"finish_reason":null,"stop_reason":null}]}`+"\n\n"
	}
	t.id = t.s.id(prefix)
	x.told = t
	x.head = fmt.Sprintf(`data: {"id":"%s","object":"%s","created":%d,"model":%s`, t.id, chunk, t.created, mustJSON(t.c.model))
	return x
}

func (t *choicesScript) whole() object {
	var choices []object
	for i, seat := range t.f.seats {
		choice := object{"logprobs": nil, "finish_reason": t.finishReason(), "stop_reason": nil}
		text := string(seat.reply)
		switch {
		case !t.legacy:
			choice["message"] = object{"role": "assistant", "content": text, "refusal": nil}
		case t.c.fields.Echo:
			choice["text"] = string(t.c.prompts[i/t.c.n]) + text
		default:
			choice["text"] = text
		}
		choices = append(choices, choice)
	}
	return t.openAIAnswer(t.kind, "choices", choices)
}

func (t *choicesScript) finishReason() string { return t.c.ended("length", "stop") }

func (t *choicesScript) choice(dst []byte, i int) []byte {
	dst = append(append(dst, t.head...), `,"choices":[{"index":`...)
	return strconv.AppendInt(dst, int64(i), 10)
}

func (t *choicesScript) begin(dst []byte) []byte {
	for i := range t.f.seats {
		switch {
		case !t.legacy:
			dst = append(t.choice(dst, i), `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
		case t.c.fields.Echo:
			dst = append(append(t.choice(dst, i), `,"text":`...), mustJSON(string(t.c.prompts[i/t.c.n]))...)
			dst = append(dst, `,"logprobs":null,"finish_reason":null,"stop_reason":null}]}`+"\n\n"...)
		}
	}
	return dst
}

func (t *choicesScript) text(dst []byte, i, from, to int) []byte {
	dst = append(t.choice(dst, i), t.before...)
	return append(append(dst, t.piece(i, from, to)...), t.after...)
}

func (t *choicesScript) stop(dst []byte, i int) []byte {
	nothing := `"delta":{}`
	if t.legacy {
		nothing = `"text":""`
	}
	return fmt.Appendf(t.choice(dst, i), `,%s,"logprobs":null,"finish_reason":"%s","stop_reason":null}]}`+"\n\n", nothing, t.finishReason())
}

func (t *choicesScript) end(dst []byte) []byte {
	if t.c.fields.StreamOptions.IncludeUsage {
		dst = append(append(dst, t.head...), `,"choices":[],"usage":`...)
		dst = append(append(dst, mustJSON(t.usage())...), "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

func (t *choicesScript) fail(dst []byte, err *apiError) []byte {
	return append(event(dst, openAIError(err)), "data: [DONE]\n\n"...)
}
