package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// departure is a time after sending or a number of reply bytes.
type departure struct {
	after time.Duration
	bytes int
}

var stays = departure{bytes: -1}

// patience exceeds any timeout here.
const patience = 40 * time.Second

const (
	maxBody  = 1 << 20
	maxEvent = 1 << 20
)

var (
	errLeft     = errors.New("the client left")
	errPatience = errors.New("the client's patience ended")
)

type exchange struct {
	l     *ledger
	a     *Attempt
	p     *payload
	leave context.CancelCauseFunc
	by    departure
	got   []byte
	ended bool
}

// send makes one attempt, compares the reply, and fills in all of a but its identity.
func send(ctx context.Context, client *http.Client, l *ledger, url string, a *Attempt, p *payload, by departure) {
	a.Head, a.First, a.Prompt, a.Cached, a.Output, a.Want = -1, -1, -1, -1, -1, len(p.want)
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	timer := time.AfterFunc(patience, func() { leave(errPatience) })
	defer timer.Stop()
	if by.after > 0 {
		t := time.AfterFunc(by.after, func() { leave(errLeft) })
		defer t.Stop()
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		a.Conn, a.Reused = i.Conn.LocalAddr().String(), i.Reused
	}})
	x := &exchange{l: l, a: a, p: p, leave: leave, by: by}
	a.Sent = l.now()
	err := x.run(ctx, client, url)
	a.End, a.Text = l.now(), len(x.got)
	x.conclude(context.Cause(ctx), err)
}

func (x *exchange) run(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+x.p.path, bytes.NewReader(x.p.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", x.a.ID)
	if x.a.Client != "" {
		req.Header.Set("Authorization", "Bearer "+x.a.Client)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	x.a.Head, x.a.Status = x.l.now(), resp.StatusCode
	x.a.Node, x.a.Backend = resp.Header.Get("X-Grapevine-Node"), resp.Header.Get("X-Grapevine-Backend")
	x.a.Route = resp.Header.Get("X-Grapevine-Route")
	if id := resp.Header.Get("X-Request-Id"); id != x.a.ID {
		return &protocolError{Foreign, fmt.Sprintf("the answer is to %q", id)}
	}
	if resp.StatusCode != http.StatusOK || !x.p.stream {
		return x.whole(resp.Body)
	}
	if t := resp.Header.Get("Content-Type"); !strings.HasPrefix(t, "text/event-stream") {
		return &protocolError{Malformed, fmt.Sprintf("content type %q", t)}
	}
	return x.events(resp.Body)
}

type protocolError struct {
	as   Outcome
	text string
}

func (e *protocolError) Error() string { return e.text }

func (x *exchange) conclude(cause, err error) {
	a := x.a
	var own *protocolError
	switch {
	case errors.As(err, &own):
		a.Outcome, a.Detail = own.as, own.text
	case err == nil && !x.ended:
		a.Outcome, a.Detail = Truncated, "the connection ends in order without the end of the answer"
	case err == nil && len(x.got) != len(x.p.want):
		a.Outcome, a.Detail = Truncated, fmt.Sprintf("it ends after %d of %d bytes of the reply", len(x.got), len(x.p.want))
	case err == nil && x.p.usage && a.Prompt < 0:
		a.Outcome, a.Detail = Truncated, "the whole reply, without the requested token counts"
	case err == nil:
		a.Outcome = Complete
	case errors.Is(cause, errLeft):
		a.Outcome = Departed
	case errors.Is(cause, errPatience):
		a.Outcome, a.Detail = Silent, fmt.Sprintf("no end after %v", patience)
	case a.Head < 0:
		a.Outcome, a.Detail = Unanswered, err.Error()
	default:
		a.Outcome, a.Detail = Broken, err.Error()
	}
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          struct {
		CachedTokens *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type answer struct {
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
	} `json:"error"`
	Choices []struct {
		Text    string  `json:"text"`
		Delta   message `json:"delta"`
		Message message `json:"message"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

func (x *exchange) take(c *answer) error {
	for i := range c.Choices {
		text := c.Choices[i].Text + c.Choices[i].Delta.Content + c.Choices[i].Message.Content
		if text == "" {
			continue
		}
		if x.a.First < 0 {
			x.a.First = x.l.now()
		}
		at := len(x.got)
		x.got = append(x.got, text...)
		if at+len(text) > len(x.p.want) || string(x.p.want[at:at+len(text)]) != text {
			return &protocolError{Foreign, fmt.Sprintf("after %d bytes %q comes, and not %q", at, clip(text), clip(string(x.p.want[min(at, len(x.p.want)):])))}
		}
	}
	if u := c.Usage; u != nil {
		if !x.p.usage {
			return &protocolError{Foreign, "token counts that the client did not request"}
		}
		x.a.Prompt, x.a.Output = u.PromptTokens, u.CompletionTokens
		if u.Details.CachedTokens != nil {
			x.a.Cached = *u.Details.CachedTokens
		}
	}
	if x.by.bytes >= 0 && len(x.got) >= x.by.bytes {
		x.leave(errLeft)
		return errLeft
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), 60)] }

// whole reads an answer that is no stream.
func (x *exchange) whole(body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return err
	}
	var c answer
	err = json.Unmarshal(text, &c)
	switch refused := x.a.Status != http.StatusOK; {
	case refused && (err != nil || c.Error == nil || c.Error.Message == ""):
		return &protocolError{Malformed, fmt.Sprintf("status %d without an error in the API's shape: %.200q", x.a.Status, text)}
	case refused:
		return &protocolError{Refused, c.Error.Message}
	case err != nil:
		return &protocolError{Malformed, fmt.Sprintf("%v in %.200q", err, text)}
	case c.Error != nil:
		return &protocolError{Malformed, "status 200 with an error: " + c.Error.Message}
	}
	x.ended = true
	return x.take(&c)
}

// events allows only the end of the body after the end mark.
func (x *exchange) events(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	var failed error // an error event; only the end mark may follow it
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); x.ended {
			return &protocolError{Foreign, fmt.Sprintf("after the end %.100q comes", data)}
		}
		if failed != nil && string(data) != "[DONE]" {
			return &protocolError{Foreign, fmt.Sprintf("after an error event %.100q comes", data)}
		}
		if string(data) == "[DONE]" {
			x.ended = true
			continue
		}
		var c answer
		if err := json.Unmarshal(data, &c); err != nil {
			return &protocolError{Malformed, fmt.Sprintf("event %.100q: %v", data, err)}
		}
		if c.Error != nil {
			failed = &protocolError{ErrorEvent, c.Error.Message}
			continue
		}
		if err := x.take(&c); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	return lines.Err()
}
