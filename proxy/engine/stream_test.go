package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

const (
	chatRole  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	chatToken = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hello \"usage\": {}"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	chatStop  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}` + "\n\n"
	chatUsage = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	done      = "data: [DONE]\n\n"
)

var streams = []struct {
	name, in, stripped string
	first              int // index of the event with the first token; -1 if none
	done               bool
	usage              Usage
}{
	{"chat", chatRole + chatToken + chatToken + chatStop + chatUsage + done, chatRole + chatToken + chatToken + chatStop + done, 1, true, Usage{9, 8, 2}},
	{"chat with CRLF", crlf(chatRole + chatToken + chatStop + chatUsage + done), crlf(chatRole + chatToken + chatStop + done), 1, true, Usage{9, 8, 2}},
	{"usage twice", chatToken + chatUsage + chatUsage + done, chatToken + chatUsage + done, 0, true, Usage{9, 8, 2}},
	{"no usage", chatRole + chatToken + done, chatRole + chatToken + done, 1, true, Usage{-1, -1, -1}},
	{"only the end", chatRole + chatStop + done, chatRole + chatStop + done, 1, true, Usage{-1, -1, -1}},
	{"tool call", chatRole + `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}]}` + "\n\n" + done,
		chatRole + `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}]}` + "\n\n" + done, 1, true, Usage{-1, -1, -1}},
	{"reasoning", chatRole + `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n", chatRole + `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n", 1, false, Usage{-1, -1, -1}},
	{"usage in the last token", chatRole + `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}` + "\n\n" + done,
		chatRole + `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}` + "\n\n" + done, 1, true, Usage{5, -1, 1}},
	{"completion", `data: {"choices":[{"index":0,"text":"","finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"index":0,"text":" a"}]}` + "\n\n" + `data: {"choices":[ ] ,"usage": {"prompt_tokens":3,"completion_tokens":1}}` + "\n\n" + done,
		`data: {"choices":[{"index":0,"text":"","finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"index":0,"text":" a"}]}` + "\n\n" + done, 1, true, Usage{3, -1, 1}},
	{"comments and names", ": ping\n\nevent: x\nid: 1\n" + chatToken + ":\n\n" + "event: u\n" + chatUsage + done, ": ping\n\nevent: x\nid: 1\n" + chatToken + ":\n\n" + done, 1, true, Usage{9, 8, 2}},
	{"data in lines", "data: {\"choices\":\ndata: [],\ndata:\"usage\":{\"prompt_tokens\":4}}\n\n" + done, done, -1, true, Usage{4, -1, -1}},
	{"usage cut off at the end", chatToken + strings.TrimRight(chatUsage, "\n"), chatToken, 0, false, Usage{9, 8, 2}},
	{"token cut off at the end", chatRole + chatToken[:40], chatRole + chatToken[:40], -1, false, Usage{-1, -1, -1}},
	{"anthropic", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[],\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":10,\"cache_read_input_tokens\":100,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", "", 3, true, Usage{135, 100, 15}},
	{"responses", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null},\"sequence_number\":0}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\",\"sequence_number\":4}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"output\":[{\"type\":\"message\"}],\"usage\":{\"input_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":32},\"output_tokens\":11}}}\n\n", "", 1, true, Usage{37, 32, 11}},
	{"sglang generate", `data: {"text":"","meta_info":{"prompt_tokens":5,"completion_tokens":0,"cached_tokens":1}}` + "\n\n" + `data: {"text":" P","meta_info":{"prompt_tokens":5,"completion_tokens":1,"cached_tokens":1}}` + "\n\n" +
		`data: {"text":" Paris","meta_info":{"prompt_tokens":5,"completion_tokens":2,"cached_tokens":1}}` + "\n\n" + done, "", 1, true, Usage{5, 1, 2}},
	{"error", `data: {"error":{"message":"no","code":500}}` + "\n\n" + done, "", -1, true, Usage{-1, -1, -1}},
	{"unknown", `data: {"token":{"text":"x"}}` + "\n\n", "", 0, false, Usage{-1, -1, -1}},
	{"nothing", "", "", -1, false, Usage{-1, -1, -1}},
	{"blank lines", "\n\n\r\n\n", "", -1, false, Usage{-1, -1, -1}},
	{"beyond what is held", longEvent(maxHold) + done, "", -1, true, Usage{9, 8, 2}},
	{"behind one beyond what is held", longToken + chatUsage + done, longToken + done, 0, true, Usage{9, 8, 2}},
	{"just held", longEvent(maxHold-1) + done, done, -1, true, Usage{9, 8, 2}},
	{"beyond what is looked into", longEvent(maxLook) + done, "", -1, true, Usage{-1, -1, -1}},
}

var longToken = strings.Replace(chatToken, "Hello", strings.Repeat("Hello ", maxHold/6), 1)

func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

// A usage-only event of n+1 bytes.
func longEvent(n int) string {
	return strings.Replace(chatUsage, `"id":"c"`, `"id":"`+strings.Repeat("c", n+1-len(chatUsage)+1)+`"`, 1)
}

// in is cut at random or into pieces of size.
func feed(t failer, in string, strip bool, size int, rnd *rand.Rand) (out string, u Usage, first int, isDone bool) {
	t.Helper()
	var s Stream
	s.Reset(strip)
	var b bytes.Buffer
	first = -1
	for at := 0; at < len(in); {
		n := size
		if rnd != nil {
			n = 1 + rnd.IntN(size)
		}
		n = min(n, len(in)-at)
		// The stream must not keep p.
		p := []byte(in[at : at+n])
		o, seen := s.Feed(p)
		b.Write(o)
		at += n
		if seen.FirstToken {
			if first >= 0 {
				t.Fatalf("two first tokens")
			}
			first = at
		}
		isDone = isDone || seen.Done
		if held := at - b.Len(); strip && held > maxHold+len(chatUsage)+n {
			t.Fatalf("holds %d bytes", held)
		}
		for i := range p {
			p[i] = 'X'
		}
	}
	b.Write(s.Flush())
	u = s.Usage()
	return b.String(), u, first, isDone
}

// The stream holds the beginning of an event that then proves too long to look into.
func TestStreamHoldsABeginningAndPassesIt(t *testing.T) {
	in := longEvent(maxLook) + done
	for _, cut := range []int{1, 100, maxHold - 1, maxHold, maxHold + 1} {
		var s Stream
		s.Reset(true)
		out := ""
		for _, p := range []string{in[:cut], in[cut:]} {
			b, _ := s.Feed([]byte(p))
			out += string(b)
		}
		if out += string(s.Flush()); out != in {
			t.Errorf("cut after %d bytes: %d bytes come out of %d", cut, len(out), len(in))
		}
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func TestStream(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, c := range streams {
		t.Run(c.name, func(t *testing.T) {
			stripped := c.stripped
			if stripped == "" {
				stripped = c.in
			}
			sizes := []int{1, 2, 3, 7, 64, 1000, 1 << 20, 1 << 22}
			if len(c.in) > 10000 {
				sizes = []int{100, 1000, 70000, 1 << 22}
			}
			for _, size := range sizes {
				for _, r := range []*rand.Rand{nil, rnd} {
					if out, u, _, isDone := feed(t, c.in, false, size, r); out != c.in || u != c.usage || isDone != c.done {
						t.Fatalf("size %d: out %q, usage %+v, done %v", size, cut(out), u, isDone)
					}
					if out, u, _, isDone := feed(t, c.in, true, size, r); out != stripped || u != c.usage || isDone != c.done {
						t.Fatalf("size %d, strip: out %q, usage %+v, done %v", size, cut(out), u, isDone)
					}
				}
			}
			_, _, first, _ := feed(t, c.in, false, 1, nil)
			want := -1
			if c.first >= 0 {
				want = endOfEvent(c.in, c.first)
			}
			if len(c.in) < 10000 && first != want {
				t.Errorf("first token at %d, want %d", first, want)
			}
		})
	}
}

func cut(s string) string { return s[:min(len(s), 2000)] }

func endOfEvent(in string, n int) int {
	at := 0
	sep := "\n\n"
	if strings.Contains(in, "\r") {
		sep = "\r\n\r\n"
	}
	for range n + 1 {
		at += strings.Index(in[at:], sep) + len(sep)
	}
	return at
}

func TestNotDelayed(t *testing.T) {
	for _, strip := range []bool{false, true} {
		var s Stream
		s.Reset(strip)
		for i, e := range []string{chatRole, chatToken, chatToken + chatToken, chatStop} {
			p := []byte(e)
			out, _ := s.Feed(p)
			if string(out) != e || &out[0] != &p[0] {
				t.Errorf("strip %v, chunk %d: got %q", strip, i, out)
			}
		}
		half := chatToken[:len(chatToken)/2]
		if out, _ := s.Feed([]byte(half)); strip && len(out) > 0 {
			t.Errorf("half an event was passed on: %q", out)
		}
		want := chatToken[len(half):]
		if strip {
			want = chatToken
		}
		if out, _ := s.Feed([]byte(chatToken[len(half):])); string(out) != want {
			t.Errorf("got %q", out)
		}
		out, seen := s.Feed([]byte(chatUsage + done))
		want = chatUsage + done
		if strip {
			want = done
		}
		if string(out) != want || !seen.Done {
			t.Errorf("strip %v: got %q, %+v", strip, out, seen)
		}
	}
}

// Output does not depend on the cuts; without strip it equals the input.
func FuzzStream(f *testing.F) {
	for i, c := range streams {
		if len(c.in) < 10000 {
			f.Add([]byte(c.in), uint64(i))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		whole, u0, _, d0 := feed(t, string(in), true, len(in)+1, nil)
		for range 3 {
			out, u, _, d := feed(t, string(in), false, 1+rnd.IntN(40), rnd)
			if out != string(in) || u != u0 || d != d0 {
				t.Fatalf("%q became %q, usage %+v and %+v, done %v and %v", in, out, u, u0, d, d0)
			}
			out, u, _, d = feed(t, string(in), true, 1+rnd.IntN(40), rnd)
			if out != whole || u != u0 || d != d0 {
				t.Fatalf("%q became %q and %q", in, out, whole)
			}
		}
		head := 0
		for head < len(whole) && whole[head] == in[head] {
			head++
		}
		if len(whole) < len(in) {
			missing := len(in) - len(whole)
			found := false
			for at := 0; at <= head && !found; at++ {
				found = string(in[:at])+string(in[at+missing:]) == whole && bytes.Contains(in[at:at+missing], []byte(`"usage"`))
			}
			if !found {
				t.Fatalf("%q became %q", in, whole)
			}
		}
	})
}

func TestStreamAllocations(t *testing.T) {
	for _, strip := range []bool{false, true} {
		var s Stream
		token, half := []byte(chatToken), []byte(chatToken[:100])
		rest := []byte(chatToken[100:])
		end := []byte(chatUsage + done)
		run := func() {
			s.Reset(strip)
			s.Feed(token)
			s.Feed(half)
			s.Feed(rest)
			s.Feed(end)
			s.Flush()
		}
		run()
		if n := testing.AllocsPerRun(100, run); n > 0 {
			t.Errorf("strip %v: %v allocations", strip, n)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	for _, strip := range []bool{false, true} {
		b.Run(fmt.Sprintf("token/strip=%v", strip), func(b *testing.B) {
			var s Stream
			s.Reset(strip)
			p := []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1,"model":"meta-llama/Llama-3.3-70B-Instruct","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
			s.Feed(p)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				s.Feed(p)
			}
		})
	}
}
