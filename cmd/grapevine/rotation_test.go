package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"grapevine.example/node/config"
)

// TestRotation renames the access log under load, as logrotate does, and signals the router: each request is in one of the two files,
// and what clients usage shows is the sum of the lines.
func TestRotation(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // probes
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":40}}}`)
	}))
	t.Cleanup(engine.Close)
	dir := t.TempDir()
	log, file := filepath.Join(dir, "access.log"), filepath.Join(dir, "clients.yaml")
	key, hash := config.NewClientKey()
	other := hex.EncodeToString(make([]byte, 32))
	text := fmt.Sprintf("anonymous: refuse\nclients:\n  - {name: search, key_sha256: %s, tokens_per_minute: 1G}\n  - {name: other, key_sha256: %s}\n", hash, other)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serveWith(t, nil, "--backend", engine.URL+",models=m", "--clients-file", file, "--access-log", "all", "--access-log-file", log, "--gpu-hour-price", "3600", "--drain-grace", "1ms")
	sent := 0
	post := func(key string, want int) {
		t.Helper()
		sent++
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.data+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("X-Request-Id", fmt.Sprint("r", sent))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if _ = res.Body.Close(); res.StatusCode != want {
			t.Fatalf("status %d: %s", res.StatusCode, body)
		}
	}
	lines := func(path string) (all []map[string]any) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var l map[string]any
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, l)
		}
		return all
	}
	post(key, 200)
	post("nobody's", 401)
	eventually(t, "two lines", func() bool { return len(lines(log)) == 2 })
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	post(key, 200) // to the renamed file, which is still open
	eventually(t, "the third line", func() bool { return len(lines(log+".1")) == 3 })
	p.signal(t, syscall.SIGHUP)
	eventually(t, "a new file in use", func() bool { return strings.Contains(p.log.String(), `"event":"config_reloaded"`) })
	post(key, 200)
	eventually(t, "the fourth line", func() bool { return len(lines(log)) == 1 })
	all := append(lines(log+".1"), lines(log)...)
	for i, l := range all {
		if l["id"] != fmt.Sprint("r", i+1) || l["bytes_out"].(float64) == 0 || l["total_ms"].(float64) == 0 {
			t.Errorf("line %d: %v", i, l)
		}
		if i != 1 && (l["client"] != "search" || l["model"] != "m" || l["prompt_tokens"] != 100. || l["cached_tokens"] != 40. || l["output_tokens"] != 7. ||
			l["attempts"] != 1. || l["rung"] == nil || l["matched_tokens"] == nil || l["queue_ms"] == nil || l["ttft_ms"] == nil || l["backend"] == "") {
			t.Errorf("line %d: %v", i, l)
		}
	}
	if got := grapevine(t, "", "clients", "usage", "--admin", p.admin); got.code != 0 || !strings.Contains(got.out, "300") || !strings.Contains(got.out, "120") || strings.Contains(got.out, key) {
		t.Errorf("%+v", got)
	} else {
		t.Log(got.out)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d", code)
	}
	if text, _ := os.ReadFile(log); strings.Contains(p.log.String()+string(text), key) {
		t.Error("the key is in a log")
	}
}
