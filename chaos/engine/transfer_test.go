package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

type completion struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage    usage           `json:"usage"`
	Transfer json.RawMessage `json:"kv_transfer_params"`
}

func asking(prompt string, tokens int, more string) string {
	return fmt.Sprintf(`{"max_tokens":%d,%s"messages":[{"role":"user","content":%q}]}`, tokens, more, prompt)
}

func transferring(cfg ServerConfig) ServerConfig {
	cfg.Transfer, cfg.TransferStart, cfg.TransferRate = true, time.Millisecond, 1e8
	return cfg
}

// prefilled returns the member that lets another engine fetch the prompt's KV cache.
func prefilled(p *live, prompt string) string {
	p.t.Helper()
	var a completion
	p.ok("/v1/chat/completions", asking(prompt, 1, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false},`), &a)
	if !strings.Contains(string(a.Transfer), `"do_remote_prefill":true`) {
		p.t.Fatalf("parameters %s", a.Transfer)
	}
	return `"kv_transfer_params":` + string(a.Transfer) + `,`
}

func TestTransfer(t *testing.T) {
	p, d, alone := startServer(t, transferring(fastConfig())), startServer(t, transferring(fastConfig())), startServer(t, fastConfig())
	long, other := strings.Repeat("one two ", 2000), strings.Repeat("three four ", 2000)
	var want, wrong, got completion
	alone.ok("/v1/chat/completions", asking(long, 20, ""), &want)
	alone.ok("/v1/chat/completions", asking(other, 20, ""), &wrong)

	member := prefilled(p, long)
	prefilled(p, other)
	d.ok("/v1/chat/completions", asking(long, 20, member), &got)
	if got.Choices[0] != want.Choices[0] {
		t.Errorf("reply %q, want %q", got.Choices[0].Message.Content, want.Choices[0].Message.Content)
	}
	if s := d.Stats(); s.PrefillTokens > 16 || s.LoadedTokens < 3900 || got.Usage.Details.CachedTokens != got.Usage.PromptTokens-1 {
		t.Errorf("computed %d tokens, loaded %d, reported %+v", s.PrefillTokens, s.LoadedTokens, got.Usage)
	}
	if truth, err := d.Cached("chat", []byte(asking(long, 20, ""))); err != nil || truth.CachedTokens < 3900 {
		t.Errorf("%d tokens cached afterwards, %v", truth.CachedTokens, err)
	}

	// A second use brings another prompt's reply with status 200, as from vLLM.
	d.ok("/v1/chat/completions", asking(long, 20, member), &got)
	if got.Choices[0] != wrong.Choices[0] {
		t.Errorf("reply to used parameters %q, want that to another prompt", got.Choices[0].Message.Content)
	}
	// An engine without the connector computes the prompt.
	alone.ok("/v1/chat/completions", asking(long, 20, prefilled(p, long)), &got)
	if got.Choices[0] != want.Choices[0] {
		t.Error("an engine without the connector gives another reply")
	}
}

func TestTransferFails(t *testing.T) {
	cfg := transferring(fastConfig())
	cfg.TransferStart = time.Minute
	p, d := startServer(t, cfg), startServer(t, cfg)
	long := strings.Repeat("one two ", 2000)
	for _, stream := range []bool{false, true} {
		member := prefilled(p, long) + fmt.Sprintf(`"stream":%t,`, stream)
		type answer struct {
			status int
			body   []byte
		}
		got := make(chan answer, 1)
		go func() {
			resp, err := d.client.Post(d.url+"/v1/chat/completions", "application/json", strings.NewReader(asking(long, 20, member)))
			if err != nil {
				got <- answer{}
				return
			}
			defer resp.Body.Close()
			var body [4096]byte
			n, _ := resp.Body.Read(body[:])
			got <- answer{resp.StatusCode, body[:n]}
		}()
		eventually(t, "the decode engine fetches", func() bool { return p.Stats().Given > 0 })
		p.Close()
		a := <-got
		want := http.StatusInternalServerError
		if stream {
			want = http.StatusOK // the head is sent before the transfer
		}
		if a.status != want || !strings.Contains(string(a.body), "KV cache transfer failed") {
			t.Errorf("stream %t: status %d, %s", stream, a.status, a.body)
		}
		p = startServer(t, cfg) // knows nothing of earlier leases
	}
	if s := d.Stats(); s.Running+s.Waiting > 0 {
		t.Errorf("jobs are left: %+v", s)
	}
}

// A client that leaves during the transfer leaves nothing behind.
func TestLeaveDuringTransfer(t *testing.T) {
	cfg := transferring(fastConfig())
	cfg.TransferStart = time.Minute
	p, d := startServer(t, cfg), startServer(t, cfg)
	member := prefilled(p, "one two three four five six seven eight") + `"stream":true,`
	resp, err := d.client.Post(d.url+"/v1/chat/completions", "application/json", strings.NewReader(asking("one", 20, member)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	eventually(t, "the engine notices", func() bool { return d.Stats().Departed > 0 })
	if s := d.Stats(); s.Submitted != 0 {
		t.Errorf("%d jobs were submitted", s.Submitted)
	}
}
