package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// net/http keeps a closing connection for half a second; that is not a leak.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func fastConfig() ServerConfig {
	return ServerConfig{
		Config: Config{KVTokens: 40_000, PrefillRate: 1e7, DecodeStep: 200 * time.Microsecond},
		Models: []string{"m", "alias"}, Adapters: []string{"lora"}, MaxModelLen: 20_000,
	}
}

type live struct {
	*Server
	t      testing.TB
	url    string
	client *http.Client
}

func startServer(t testing.TB, cfg ServerConfig) *live {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &live{Server: s, t: t, url: "http://" + s.Addr(), client: &http.Client{Transport: transport, Timeout: time.Minute}}
}

func (l *live) post(path, body string) (int, []byte) {
	l.t.Helper()
	resp, err := l.client.Post(l.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// get decodes an answer of that status into anything but nil.
func (l *live) get(path string, want int, into any) {
	l.t.Helper()
	resp, err := l.client.Get(l.url + path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		l.t.Fatalf("%s: %d, want %d", path, resp.StatusCode, want)
	}
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *live) ok(path, body string, into any) {
	l.t.Helper()
	status, answer := l.post(path, body)
	if status != http.StatusOK {
		l.t.Fatalf("%s: %d %s", path, status, answer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		l.t.Fatalf("%s: %v in %s", path, err, answer)
	}
}

func (l *live) events(path, body string) (data []string) {
	l.t.Helper()
	status, answer := l.post(path, body)
	if status != http.StatusOK {
		l.t.Fatalf("%s: %d %s", path, status, answer)
	}
	in := bufio.NewScanner(bytes.NewReader(answer))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if rest, found := strings.CutPrefix(in.Text(), "data: "); found {
			data = append(data, rest)
		}
	}
	return data
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func chat(more string, turns ...string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are terse, and say only what was asked for, in plain words."}`)
	for i, text := range turns {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		b.WriteString(`,{"role":"` + role + `","content":` + string(mustJSON(text)) + `}`)
	}
	b.WriteString(`]` + more + `}`)
	return b.String()
}

type chatCompletion struct {
	Object  string
	Choices []struct {
		Message      struct{ Content string }
		FinishReason string `json:"finish_reason"`
	}
	Usage usage
}

func TestServerChat(t *testing.T) {
	l := startServer(t, fastConfig())
	question := strings.Repeat("What is the answer? ", 50)
	var a chatCompletion
	l.ok("/v1/chat/completions", chat(`,"max_tokens":33`, question), &a)
	reply := a.Choices[0].Message.Content
	if len(reply) != 33*TokenBytes || strings.TrimSpace(reply) != reply || a.Object != "chat.completion" || a.Choices[0].FinishReason != "length" {
		t.Fatalf("%+v", a)
	}
	u := a.Usage
	if u.CompletionTokens != 33 || u.TotalTokens != u.PromptTokens+33 || u.Details == nil || u.Details.CachedTokens != 0 {
		t.Fatalf("usage %+v", u)
	}
	events := l.events("/v1/chat/completions", chat(`,"max_completion_tokens":33,"stream":true,"stream_options":{"include_usage":true}`, question))
	var text strings.Builder
	for i, e := range events[:len(events)-2] {
		var chunk struct {
			Choices []struct {
				Delta        struct{ Role, Content string }
				FinishReason *string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(e), &chunk); err != nil {
			t.Fatalf("%v in %s", err, e)
		}
		c := chunk.Choices[0]
		if (i == 0) != (c.Delta.Role == "assistant") || (i == len(events)-3) != (c.FinishReason != nil) {
			t.Fatalf("chunk %d: %s", i, e)
		}
		text.WriteString(c.Delta.Content)
	}
	if text.String() != reply || events[len(events)-1] != "[DONE]" || len(events) != 33+4 {
		t.Fatalf("%d events say %q, want %q", len(events), text.String(), reply)
	}
	var last struct {
		Choices []int
		Usage   usage
	}
	if err := json.Unmarshal([]byte(events[len(events)-2]), &last); err != nil || last.Choices == nil || len(last.Choices) != 0 {
		t.Fatalf("%v in %s", err, events[len(events)-2])
	}
	full := u.PromptTokens / KeyTokens * KeyTokens
	if got := last.Usage.Details.CachedTokens; got != full {
		t.Fatalf("cached %d, want %d", got, full)
	}
	// The next turn finds the reply except its last block and token, and the truth predicts it.
	next := chat(`,"max_tokens":3`, question, reply, "And why?")
	truth, err := l.Cached("chat", []byte(next))
	if err != nil {
		t.Fatal(err)
	}
	l.ok("/v1/chat/completions", next, &a)
	want := (u.PromptTokens + 32) / KeyTokens * KeyTokens
	if truth.CachedTokens != want || a.Usage.Details.CachedTokens != want || truth.PromptTokens != a.Usage.PromptTokens {
		t.Fatalf("truth %+v, usage %+v, want %d cached", truth, a.Usage.Details, want)
	}
}

func TestServerReportsCachedAsConfigured(t *testing.T) {
	for _, test := range []struct {
		style         MetricsStyle
		hide          bool
		first, second string
	}{
		{StyleVLLM, false, `{"cached_tokens":0}`, `{"cached_tokens":32}`},
		{StyleSGLang, false, `null`, `{"cached_tokens":32}`},
		{StyleVLLM, true, `null`, `null`},
	} {
		cfg := fastConfig()
		cfg.MetricsStyle, cfg.HideCached = test.style, test.hide
		l := startServer(t, cfg)
		for _, want := range []string{test.first, test.second} {
			var a struct {
				Usage struct {
					Details json.RawMessage `json:"prompt_tokens_details"`
				}
			}
			l.ok("/v1/chat/completions", chat("", "Hello, you over there, how are you?"), &a)
			if string(a.Usage.Details) != want {
				t.Errorf("%s, hide %v: details %s, want %s", test.style, test.hide, a.Usage.Details, want)
			}
		}
	}
}

func TestServerCachesApart(t *testing.T) {
	l := startServer(t, fastConfig())
	body := func(model, more string) string {
		return `{"model":"` + model + `","prompt":"` + strings.Repeat("word ", 100) + `","max_tokens":1` + more + `}`
	}
	for _, step := range []struct {
		model, more string
		cached      bool
	}{{"m", "", false}, {"alias", "", true}, {"lora", "", false}, {"lora", "", true}, {"m", `,"cache_salt":"x"`, false}, {"m", `,"cache_salt":"x"`, true}, {"m", `,"cache_salt":"y"`, false}} {
		var a chatCompletion
		l.ok("/v1/completions", body(step.model, step.more), &a)
		if got := a.Usage.Details.CachedTokens > 0; got != step.cached {
			t.Errorf("%s%s: cached %d", step.model, step.more, a.Usage.Details.CachedTokens)
		}
	}
}

func TestServerEndpoints(t *testing.T) {
	l := startServer(t, fastConfig())
	for _, test := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:,x"}}]}],"n":2}`, `"index":1`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}],"tools":[{"type":"function","function":{"name":"f"}}]}`, `"finish_reason":"stop"`},
		{"/v1/completions", `{"model":"m","prompt":["a","b"],"max_tokens":2,"echo":true}`, `"text":"b`},
		{"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":0}`, `"prompt_tokens":3`},
		{"/v1/embeddings", `{"model":"m","input":["a","b"],"dimensions":3}`, `"object":"embedding"`},
		{"/v1/embeddings", `{"model":"m","input":"a","encoding_format":"base64"}`, `"embedding":"`},
		{"/v1/responses", `{"model":"m","input":"a","instructions":"b","max_output_tokens":4}`, `"status":"incomplete"`},
		{"/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"x"}]}`, `"status":"completed"`},
		{"/v1/messages", `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"a"}]}`, `"stop_reason":"max_tokens"`},
		{"/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"four score and seven"}]}`, `"input_tokens":`},
	} {
		status, answer := l.post(test.path, test.body)
		if status != http.StatusOK || !json.Valid(answer) || !bytes.Contains(answer, []byte(test.want)) {
			t.Errorf("%s %s: %d %s, want %s", test.path, test.body, status, answer, test.want)
		}
	}
	for path, want := range map[string]string{
		"/v1/models": `"id":"lora"`, "/health": "",
		"/emulator/stats": `"running":0`, "/metrics": `vllm:num_requests_running{engine="0",model_name="m"} 0`,
	} {
		resp, err := l.client.Get(l.url + path)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(want)) {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, answer, want)
		}
	}
	eventually(t, "idle", func() bool { s := l.Stats(); return s.Running+s.Waiting+s.KVUsed-s.KVEvictable == 0 })
}

func TestServerRenders(t *testing.T) {
	l := startServer(t, fastConfig())
	chat := func(text string) string {
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`, strings.Repeat("abcd", 100), text)
	}
	var one, two Rendered
	l.ok("/v1/chat/completions/render", chat("first question"), &one)
	l.ok("/v1/chat/completions/render", chat("second question"), &two)
	truth, err := l.Cached("chat", []byte(chat("first question")))
	if err != nil || len(one.TokenIDs) != truth.PromptTokens || truth.CachedTokens != 0 {
		t.Errorf("%d tokens and %+v, %v: want equal counts and an empty cache", len(one.TokenIDs), truth, err)
	}
	if !slices.Equal(one.TokenIDs[:100], two.TokenIDs[:100]) || slices.Equal(one.TokenIDs, two.TokenIDs) {
		t.Errorf("the tokens of two chats with one system prompt: %v, %v", one.TokenIDs, two.TokenIDs)
	}
	if status, _ := l.post("/v1/chat/completions/render", `{"model":"m"}`); status != http.StatusBadRequest {
		t.Errorf("without messages: %d", status)
	}
}

func TestServerStreams(t *testing.T) {
	cfg := fastConfig()
	cfg.TokensPerChunk = 3
	l := startServer(t, cfg)
	for _, test := range []struct {
		path, body, kinds string
	}{
		{"/v1/messages", `{"model":"m","max_tokens":7,"stream":true,"messages":[{"role":"user","content":"a"}]}`,
			"message_start content_block_start ping content_block_delta content_block_delta content_block_delta content_block_stop message_delta message_stop"},
		{"/v1/responses", `{"model":"m","max_output_tokens":4,"stream":true,"input":"a"}`,
			"response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta response.output_text.delta response.output_text.done response.content_part.done response.output_item.done response.incomplete"},
	} {
		var kinds []string
		for _, e := range l.events(test.path, test.body) {
			var typed struct{ Type string }
			if err := json.Unmarshal([]byte(e), &typed); err != nil {
				t.Fatalf("%v in %s", err, e)
			}
			kinds = append(kinds, typed.Type)
		}
		if got := strings.Join(kinds, " "); got != test.kinds {
			t.Errorf("%s: %s, want %s", test.path, got, test.kinds)
		}
	}
	several := l.events("/v1/completions", `{"model":"m","prompt":["abc","d"],"n":2,"stream":true,"max_tokens":2}`)
	if len(several) != 9 || !strings.Contains(fmt.Sprint(several), `"index":3`) {
		t.Errorf("completions: %s", several)
	}
}

func TestServerErrors(t *testing.T) {
	cfg := fastConfig()
	cfg.MaxBody = 1 << 16
	l := startServer(t, cfg)
	long := strings.Repeat("x", 1<<15)
	for _, test := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/chat/completions", `{"model":`, 400, `"type":"BadRequestError"`},
		{"/v1/chat/completions", ``, 400, `"code":400`},
		{"/v1/chat/completions", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, `UTF-8`},
		{"/v1/chat/completions", strings.Repeat("[", 20_000), 400, `"error"`},
		{"/v1/chat/completions", `[]`, 400, `"error"`},
		{"/v1/chat/completions", `{"model":"nope","messages":[{"role":"user","content":"a"}]}`, 404, `"code":404`},
		{"/v1/chat/completions", `{"model":"m"}`, 400, `"param":"messages"`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"content":"a"}]}`, 400, `messages.0.role`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":7}]}`, 400, `content must be`},
		{"/v1/chat/completions", `{"model":"m","max_tokens":0,"messages":[{"role":"user","content":"a"}]}`, 400, `"param":"max_tokens"`},
		{"/v1/chat/completions", `{"model":"m","max_tokens":20000,"messages":[{"role":"user","content":"a"}]}`, 400, `"code":"context_length_exceeded"`},
		{"/v1/chat/completions", `{"model":"m","n":1000,"messages":[{"role":"user","content":"a"}]}`, 400, `"param":"n"`},
		{"/v1/completions", `{"model":"m","prompt":"` + long + long[:30_000] + `","max_tokens":9999}`, 400, `context_length_exceeded`},
		{"/v1/completions", `{"model":"m"}`, 400, `"param":"prompt"`},
		{"/v1/completions", `{"model":"m","prompt":"` + long + long + `"}`, 413, `larger than`},
		{"/v1/embeddings", `{"model":"m"}`, 400, `"param":"input"`},
		{"/v1/responses", `{"model":"m","input":"a","previous_response_id":"r1"}`, 404, `r1`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"a"}]}`, 400, `{"error":{"message":"max_tokens: Field required","type":"invalid_request_error"},"type":"error"}`},
		{"/v1/messages", `{"model":"nope","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, 404, `"type":"not_found_error"`},
		{"/nowhere", `{}`, 404, `{"detail":"Not Found"}`},
		{"/emulator/fault", `{"kind":"boredom"}`, 400, `unknown fault`},
		{"/emulator/cached?kind=nothing", `{}`, 400, `unknown endpoint`},
	} {
		status, answer := l.post(test.path, test.body)
		if status != test.status || !bytes.Contains(answer, []byte(test.want)) {
			t.Errorf("%s %.80s: %d %s, want %d %s", test.path, test.body, status, answer, test.status, test.want)
		}
	}
	if s := l.Stats(); s.Submitted != 0 {
		t.Errorf("a bad request reached the model: %+v", s)
	}
	resp, err := l.client.Get(l.url + "/v1/completions")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}

func TestServerAborts(t *testing.T) {
	cfg := fastConfig()
	cfg.DecodeStep, cfg.MaxRunning = 20*time.Millisecond, 1
	l := startServer(t, cfg)
	left := int64(0)
	for _, stream := range []string{"false", "true"} {
		var took time.Duration
		for range 10 {
			left += 2
			if took = l.leave(stream); took <= 100*time.Millisecond {
				break
			}
		}
		if took > 100*time.Millisecond {
			t.Errorf("stream=%s: aborted after %v", stream, took)
		}
	}
	eventually(t, "departures counted", func() bool { return l.Stats().Departed == left })
}

func (l *live) leave(stream string) time.Duration {
	l.t.Helper()
	failed := make(chan error, 2)
	before := l.Stats().Cancelled
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 2 {
		body := chat(`,"max_tokens":9000,"stream":`+stream, "Talk.")
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/chat/completions", strings.NewReader(body))
		go func() {
			resp, err := l.client.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			failed <- err
		}()
	}
	eventually(l.t, "one running, one waiting", func() bool { s := l.Stats(); return s.Running == 1 && s.Waiting == 1 })
	cancel()
	left := time.Now()
	eventually(l.t, "both aborted", func() bool {
		s := l.Stats()
		return s.Cancelled == before+2 && s.Running+s.Waiting+s.KVUsed-s.KVEvictable == 0
	})
	took := time.Since(left)
	for range 2 {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			l.t.Errorf("client got %v", err)
		}
	}
	return took
}

func TestServerDropsClientThatDoesNotRead(t *testing.T) {
	cfg := fastConfig()
	// About 10 MB/s for 40 s fill the socket buffers long before the reply ends, on slow machines
	// too.
	const tokens = 2_000_000
	cfg.MaxModelLen, cfg.KVTokens, cfg.DecodeStep, cfg.WriteTimeout = tokens, tokens, 20*time.Microsecond, 100*time.Millisecond
	l := startServer(t, cfg)
	conn, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4096)
	body := chat(fmt.Sprintf(`,"max_tokens":%d,"stream":true`, tokens-1000), "Talk.")
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	eventually(t, "given up", func() bool { s := l.Stats(); return s.Departed == 1 && s.Running == 0 && s.KVUsed == s.KVEvictable })
}

func TestServerHalfClose(t *testing.T) {
	cfg := fastConfig()
	cfg.DecodeStep = 5 * time.Millisecond
	l := startServer(t, cfg)
	conn, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := chat(`,"max_tokens":9000`, "Talk.")
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	eventually(t, "running", func() bool { return l.Stats().Running == 1 })
	conn.(*net.TCPConn).CloseWrite()
	eventually(t, "aborted", func() bool { s := l.Stats(); return s.Cancelled == 1 && s.Running == 0 })
}

func TestServerMetrics(t *testing.T) {
	for style, names := range map[MetricsStyle][]string{
		StyleVLLM:   {`vllm:num_requests_waiting{engine="0",model_name="m"} 0`, "vllm:kv_cache_usage_perc{", "vllm:prefix_cache_hits_total{", `block_size="16"`, `num_gpu_blocks="2500"`, `vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 1`, "vllm:request_prefill_kv_computed_tokens_sum{", "vllm:request_prefill_time_seconds_count{engine=\"0\",model_name=\"m\"} 1", "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 5"},
		StyleSGLang: {`sglang:num_running_reqs{model_name="m"} 0`, "sglang:num_queue_reqs{", "sglang:token_usage{", "sglang:cache_hit_rate{", `num_pages="2500",page_size="16"`, `sglang:e2e_request_latency_seconds_count{model_name="m"} 1`},
	} {
		cfg := fastConfig()
		cfg.MetricsStyle = style
		l := startServer(t, cfg)
		l.post("/v1/chat/completions", chat(`,"max_tokens":5`, "Hello."))
		resp, err := l.client.Get(l.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		for _, name := range names {
			if !bytes.Contains(text, []byte(name)) {
				t.Errorf("%s: no %s in\n%s", style, name, text)
			}
		}
	}
}

func TestServerCloses(t *testing.T) {
	cfg := fastConfig()
	cfg.DecodeStep = 5 * time.Millisecond
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+ln.Addr().String()+"/v1/chat/completions", "", strings.NewReader(chat(`,"max_tokens":19000,"stream":true`, "Talk.")))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "running", func() bool { return s.Stats().Running == 1 })
	s.Close()
	s.Close()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the stream ended as if it were whole")
	}
	resp.Body.Close()
	if (s.Stats() != ServerStats{}) {
		t.Error("a closed server has statistics")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(uint8(endpointChat), []byte(chat(`,"max_tokens":3`, "a", "b", "c")))
	f.Add(uint8(endpointMessages), []byte(`{"max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{}}]}]}`))
	f.Add(uint8(endpointResponses), []byte(`{"input":[{"type":"function_call","arguments":"{}"}]}`))
	s, err := NewServer(fastConfig())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, e uint8, body []byte) {
		before := bytes.Clone(body)
		c, bad := s.parse(endpoint(e%uint8(endpointCountTokens+1)), body)
		if (c == nil) == (bad == nil) {
			t.Fatal("neither a call nor an error, or both")
		}
		if !bytes.Equal(before, body) {
			t.Fatal("parsing changed the body")
		}
		if c == nil || c.output*c.n*len(c.prompts) > 1<<20 {
			return
		}
		for _, seat := range c.flight().seats {
			j := &seat.job
			if j.PromptTokens < 1 || len(j.Keys) != j.PromptTokens/KeyTokens && len(j.OutKeys) > 0 {
				t.Fatalf("%d keys for %d tokens", len(j.Keys), j.PromptTokens)
			}
			if want := (j.PromptTokens+j.OutputTokens)/KeyTokens - len(j.Keys); j.OutKeys != nil && len(j.OutKeys) != want {
				t.Fatalf("%d keys of the reply, want %d", len(j.OutKeys), want)
			}
		}
	})
}
