package engine

import (
	"net/http"
	"strconv"
	"time"
)

// script writes a reply as the server-sent events of one API. Each method appends events to dst; i
// is the seat.
type script interface {
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

func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *call, f *flight) {
	t := told{c: c, f: f, s: s, created: time.Now().Unix()}
	var how script
	switch c.endpoint {
	case endpointChat:
		how = newChatScript(t)
	case endpointCompletion:
		how = newCompletionScript(t)
	case endpointResponses:
		how = newResponsesScript(t)
	case endpointMessages:
		how = newMessagesScript(t)
	default:
		how = newGenerateScript(t)
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	out := http.NewResponseController(w)
	if !s.cfg.LateHeaders {
		w.WriteHeader(http.StatusOK)
		_ = out.Flush() // the next write reports a failure
	}
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
				_ = write(w, out, s.cfg.WriteTimeout, how.fail(buf, launchError(err))) // ends here whether or not the write succeeds
				return
			}
			if stopped[i] || (p.tokens == 0 && !p.done) {
				continue
			}
			if !begun {
				begun, buf = true, how.begin(buf)
			}
			for sent[i] < p.tokens {
				to := min(sent[i]+s.cfg.TokensPerChunk, p.tokens)
				if to-sent[i] < s.cfg.TokensPerChunk && !p.done {
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
		if len(buf) > 0 && write(w, out, s.cfg.WriteTimeout, buf) != nil {
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

type chatScript struct {
	told
	head   string
	before string // between the index of a choice and its text
	after  string
}

func newChatScript(t told) *chatScript {
	t.id = t.s.id("chatcmpl-")
	return &chatScript{told: t, head: chunkHead(t, "chat.completion.chunk"), before: `,"delta":{"content":"`, after: `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"}
}

func chunkHead(t told, object string) string {
	return `data: {"id":"` + t.id + `","object":"` + object + `","created":` + strconv.FormatInt(t.created, 10) + `,"model":` + quoted(t.c.model)
}

const choices = `,"choices":[{"index":`

func (t *chatScript) begin(dst []byte) []byte {
	for i := range t.f.seats {
		dst = append(append(dst, t.head...), choices...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
	}
	return dst
}

func (t *chatScript) text(dst []byte, i, from, to int) []byte {
	dst = append(append(dst, t.head...), choices...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	dst = append(dst, t.before...)
	dst = append(dst, t.piece(i, from, to)...)
	return append(dst, t.after...)
}

func (t *chatScript) stop(dst []byte, i int) []byte {
	dst = append(append(dst, t.head...), choices...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	return append(dst, `,"delta":{},"logprobs":null,"finish_reason":"`+t.c.finishReason()+`","stop_reason":null}]}`+"\n\n"...)
}

func (t *chatScript) end(dst []byte) []byte {
	if t.c.fields.StreamOptions.IncludeUsage {
		dst = append(append(dst, t.head...), `,"choices":[],"usage":`...)
		dst = append(dst, mustJSON(t.s.usage(t.c, t.f))...)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

func (t *chatScript) fail(dst []byte, err *apiError) []byte {
	dst = append(append(dst, "data: "...), mustJSON(openAIError(err))...)
	return append(dst, "\n\ndata: [DONE]\n\n"...)
}

type completionScript struct{ chatScript }

func newCompletionScript(t told) *completionScript {
	t.id = t.s.id("cmpl-")
	return &completionScript{chatScript{told: t, head: chunkHead(t, "text_completion"), before: `,"text":"`, after: `","logprobs":null,"finish_reason":null,"stop_reason":null}]}` + "\n\n"}}
}

func (t *completionScript) begin(dst []byte) []byte {
	if !t.c.fields.Echo {
		return dst
	}
	for i := range t.f.seats {
		dst = append(append(dst, t.head...), choices...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(append(dst, `,"text":`...), quoted(string(t.c.prompts[i/t.c.n]))...)
		dst = append(dst, `,"logprobs":null,"finish_reason":null,"stop_reason":null}]}`+"\n\n"...)
	}
	return dst
}

func (t *completionScript) stop(dst []byte, i int) []byte {
	dst = append(append(dst, t.head...), choices...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	return append(dst, `,"text":"","logprobs":null,"finish_reason":"`+t.c.finishReason()+`","stop_reason":null}]}`+"\n\n"...)
}
