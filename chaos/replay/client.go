package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"grapevine.example/chaos/workload"
)

// client sends streaming chat requests. Safe for concurrent use.
type client struct {
	http *http.Client
	cfg  *Config
}

type job struct {
	req     *workload.Request
	target  string
	replies []string // texts of the segments that are replies, in order
	start   time.Time
}

// maxErrorBody bounds an error answer, maxEvent one line of a stream.
const (
	maxErrorBody = 4 << 10
	maxEvent     = 4 << 20
)

func (c *client) send(run context.Context, j job) outcome {
	o := outcome{req: j.req, firstToken: -1, prompt: -1, cached: -1, output: -1, predicted: -1}
	ctx, cancel := context.WithDeadline(run, j.start.Add(j.req.At+c.cfg.Timeout))
	defer cancel()
	if err := c.exchange(ctx, j, &o); err != nil {
		o.err = classify(run, err)
	}
	o.end = time.Since(j.start)
	return o
}

func (c *client) exchange(ctx context.Context, j job, o *outcome) error {
	body, err := j.body(c.cfg.Model)
	if err != nil {
		return err
	}
	resp, err := c.ask(ctx, j, body, o)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	o.node = resp.Header.Get("X-Grapevine-Node")
	o.backend = resp.Header.Get("X-Grapevine-Backend")
	o.rung, o.predicted = parseRoute(resp.Header.Get("X-Grapevine-Route"))
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		return &Error{statusClass(resp.StatusCode), errors.New(strings.TrimSpace(string(text)))}
	}
	if t := resp.Header.Get("Content-Type"); !strings.HasPrefix(t, "text/event-stream") {
		return &Error{Malformed, fmt.Errorf("content type %q, want text/event-stream", t)}
	}
	return readStream(resp.Body, j.start, o)
}

func (c *client) ask(ctx context.Context, j job, body []byte, o *outcome) (*http.Response, error) {
	for {
		req, err := c.request(ctx, j, body)
		if err != nil {
			return nil, err
		}
		if o.retries == 0 {
			o.sent = time.Since(j.start)
		}
		resp, err := c.http.Do(req)
		if err == nil || ctx.Err() != nil || o.retries >= c.cfg.Retries {
			return resp, err
		}
		pause := time.NewTimer(pauseBefore(o.retries, j.req.Index))
		o.retries++
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}

// pauseBefore is the official clients' backoff: half a second, doubled each time up to 8 s, less up
// to a quarter. The request's index decides the part, so that runs are repeatable.
func pauseBefore(retries, index int) time.Duration {
	full := min(500*time.Millisecond<<min(retries, 10), 8*time.Second)
	return full - full/4*time.Duration(index%64)/64
}

func (c *client) request(ctx context.Context, j job, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.target+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	if c.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIKey)
	}
	if j.req.Session >= 0 {
		// As agents do. Only the session strategy reads it, and would otherwise be measured as
		// round robin.
		req.Header.Set("X-Session-Id", fmt.Sprintf("replay-%d-%d", c.cfg.Seed, j.req.Session))
	}
	return req, nil
}

type chunk struct {
	Choices []struct {
		Delta struct {
			Content          string `json:"content"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// readStream reads server-sent events to the end of the body, so that the connection is reusable,
// and fills in o.
func readStream(body io.Reader, start time.Time, o *outcome) error {
	var text strings.Builder
	done := false
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok || done {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			done = true
			continue
		}
		var ch chunk
		if err := json.Unmarshal(data, &ch); err != nil {
			return &Error{Malformed, fmt.Errorf("event %q: %w", data[:min(len(data), 80)], err)}
		}
		if ch.Error != nil {
			return &Error{InStream, errors.New(ch.Error.Message)}
		}
		for i := range ch.Choices {
			d := &ch.Choices[i].Delta
			if o.firstToken < 0 && (d.Content != "" || d.ReasoningContent != "") {
				o.firstToken = time.Since(start)
			}
			text.WriteString(d.Content)
		}
		if u := ch.Usage; u != nil {
			o.prompt, o.output = u.PromptTokens, u.CompletionTokens
			if u.Details != nil && u.Details.CachedTokens != nil {
				o.cached = *u.Details.CachedTokens
			}
		}
	}
	o.text = text.String()
	if err := lines.Err(); err != nil {
		return err
	}
	if !done {
		return &Error{Truncated, errors.New("the stream ended without [DONE]")}
	}
	return nil
}

func parseRoute(h string) (rung string, tokens int) {
	rung, fields, _ := mime.ParseMediaType(h)
	for _, name := range []string{"predicted", "matched"} { // routers before 1.1 give the latter only
		if n, err := strconv.Atoi(fields[name]); err == nil && n >= 0 {
			return rung, n
		}
	}
	return rung, -1
}

// body renders a request as a streaming chat. With ignore_eos vLLM and SGLang produce exactly the
// trace's output length.
func (j *job) body(model string) ([]byte, error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	reply := 0
	for _, s := range j.req.Segments() {
		text := string(j.req.AppendText(nil, s))
		if s.ReplyOf > 0 {
			text = j.replies[reply]
			reply++
		}
		messages = append(messages, message{s.Role.String(), text})
	}
	return json.Marshal(map[string]any{
		"model": model, "messages": messages, "max_tokens": j.req.OutputTokens, "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
}
