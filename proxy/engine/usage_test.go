package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestParseUsage(t *testing.T) {
	big := strings.Repeat(`{"object":"embedding","index":0,"embedding":[0.0123,-0.5,1e-3],"note":"\"usage\": {\"prompt_tokens\": 1}"},`, 200)
	big = "[" + big[:len(big)-1] + "]"
	for _, c := range []struct {
		name, body string
		want       Usage
	}{
		{"vllm chat", `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"the \"usage\":{\"prompt_tokens\":9} of it"},"finish_reason":"stop"}],"usage":{"prompt_tokens":27,"total_tokens":35,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":16}},"prompt_logprobs":null,"kv_transfer_params":null}`, Usage{27, 16, 8}},
		{"details null", `{"usage":{"prompt_tokens":27,"completion_tokens":8,"prompt_tokens_details":null}}`, Usage{27, -1, 8}},
		{"cached null", `{"usage":{"prompt_tokens":27,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":null,"audio_tokens":3}}}`, Usage{27, -1, 8}},
		{"cached zero", `{"usage":{"prompt_tokens":27,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}`, Usage{27, 0, 8}},
		{"no usage", `{"id":"x"}`, Usage{-1, -1, -1}},
		{"usage null", `{"usage":null}`, Usage{-1, -1, -1}},
		{"error", `{"error":{"message":"no","type":"x","param":null,"code":400}}`, Usage{-1, -1, -1}},
		{"responses", `{"id":"resp_1","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":105}}`, Usage{100, 64, 5}},
		{"anthropic", `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":12,"cache_creation_input_tokens":30,"cache_read_input_tokens":100,"output_tokens":7}}`, Usage{142, 100, 7}},
		{"anthropic without cache", `{"type":"message","usage":{"input_tokens":12,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"output_tokens":7}}`, Usage{12, -1, 7}},
		{"count_tokens", `{"input_tokens":42}`, Usage{42, -1, -1}},
		{"sglang generate", `{"text":" Paris","output_ids":[1,2],"meta_info":{"id":"a","finish_reason":{"type":"length","length":2},"prompt_tokens":9,"weight_version":"default","completion_tokens":2,"cached_tokens":8,"e2e_latency":0.1}}`, Usage{9, 8, 2}},
		{"sglang batch", `[{"text":"a","meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8}},{"text":"b","meta_info":{"prompt_tokens":1,"completion_tokens":3,"cached_tokens":0}}]`, Usage{10, 8, 5}},
		{"sglang batch, part unknown", `[{"meta_info":{"prompt_tokens":9,"cached_tokens":8}},{"meta_info":{"prompt_tokens":1,"cached_tokens":null}}]`, Usage{10, -1, -1}},
		{"embeddings", `{"data":` + big + `,"model":"e","object":"list","usage":{"prompt_tokens":900,"total_tokens":900}}`, Usage{900, -1, -1}},
		{"large, usage first", `{"usage":{"prompt_tokens":900,"total_tokens":900},"data":` + big + `}`, Usage{900, -1, -1}},
		{"large, another inside", `{"usage":{"prompt_tokens":7},"x":{"data":` + big + `,"usage":{"prompt_tokens":1}},"y":["usage",{"usage":{"prompt_tokens":2}}]}`, Usage{7, -1, -1}},
		{"large, a name that ends alike", `{"usage":{"prompt_tokens":7},"data":` + big + `,"\"usage":{"prompt_tokens":3}}`, Usage{7, -1, -1}},
		{"large, spaced", "{\"data\":" + big + ",\n \"usage\" : { \"prompt_tokens\" : 900 } \n}\n", Usage{900, -1, -1}},
		{"large sglang", `{"text":` + big + `,"meta_info":{"prompt_tokens":9,"completion_tokens":2}}`, Usage{9, -1, 2}},
		{"more cached than there is", `{"usage":{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":11}}}`, Usage{10, -1, 1}},
		{"absurd", `{"usage":{"prompt_tokens":99999999999999999999999,"completion_tokens":-1,"input_tokens":1.5}}`, Usage{-1, -1, -1}},
		{"cut off", `{"usage":{"prompt_tokens":10,"comp`, Usage{-1, -1, -1}},
		{"nothing", ``, Usage{-1, -1, -1}},
		{"not json", `<html>"usage":{`, Usage{-1, -1, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ParseUsage([]byte(c.body)); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func usageOracle(body []byte) (Usage, bool) {
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil {
		return Usage{}, false
	}
	whole := func(raw json.RawMessage) int {
		n := -1
		if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' || bytes.ContainsAny(raw, ".eE") || json.Unmarshal(raw, &n) != nil || n > maxTokens {
			return -1
		}
		return n
	}
	var usage, details map[string]json.RawMessage
	if json.Unmarshal(top["usage"], &usage) != nil {
		return Usage{-1, -1, -1}, true
	}
	_ = json.Unmarshal(usage["prompt_tokens_details"], &details)
	u := Usage{whole(usage["prompt_tokens"]), whole(details["cached_tokens"]), whole(usage["completion_tokens"])}
	if u.PromptTokens >= 0 && u.CachedTokens > u.PromptTokens {
		u.CachedTokens = -1
	}
	return u, true
}

// FuzzParseUsage compares with encoding/json.
func FuzzParseUsage(f *testing.F) {
	f.Add(`{"a":"x\"usage\":{"}`, `{"usage":{"prompt_tokens":1}}`, uint16(3), uint16(2), uint16(1), true)
	f.Add(`[1,{"usage":{"prompt_tokens":4}}]`, `"usage"`, uint16(9), uint16(0), uint16(7), false)
	f.Fuzz(func(t *testing.T, before, after string, prompt, cached, out uint16, large bool) {
		if !json.Valid([]byte(before)) || !json.Valid([]byte(after)) {
			ParseUsage([]byte(before + after)) // must not panic
			return
		}
		pad := ""
		if large {
			pad = strings.Repeat(" ", smallBody)
		}
		body := fmt.Sprintf(`{"before":%s,%s"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens":%d},"after":%s}`,
			before, pad, prompt, cached, out, after)
		want, ok := usageOracle([]byte(body))
		if !ok {
			t.Fatalf("oracle refuses %q", body)
		}
		if got := ParseUsage([]byte(body)); got != want {
			t.Fatalf("%q: %+v, want %+v", body, got, want)
		}
	})
}

func BenchmarkParseUsage(b *testing.B) {
	vector := "[" + strings.TrimSuffix(strings.Repeat("-0.012345678,", 4096), ",") + "]"
	for name, body := range map[string]string{
		"chat/600B":      `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", 80) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":27,"total_tokens":35,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":16}}}`,
		"embeddings/1MB": `{"data":[` + strings.TrimSuffix(strings.Repeat(`{"embedding":`+vector+`},`, 20), ",") + `],"usage":{"prompt_tokens":900,"total_tokens":900}}`,
	} {
		b.Run(name, func(b *testing.B) {
			raw := []byte(body)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if ParseUsage(raw) == Unknown {
					b.Fatal("no usage")
				}
			}
		})
	}
}
