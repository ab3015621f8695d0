package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
)

func request(id string, status int) *proxy.Record {
	return &proxy.Record{
		ID: []byte(id), Method: []byte("POST"), Path: []byte("/v1/chat/completions"), Model: []byte("m"), Client: "search", Peer: []byte("10.0.0.7"),
		Status: status, Backend: "gpu1", Attempts: 2, PromptTokens: 100, CachedTokens: -1, OutputTokens: 7,
		Decision: &policy.Decision{Strategy: "prefix", Rung: policy.Cache, PredictedTokens: 96, Exact: true}, MatchedTokens: 98,
		Overhead: 40 * time.Microsecond, Queue: 3 * time.Millisecond, TTFT: 50 * time.Millisecond, Total: time.Second,
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"off": "", "errors": "500 429 broken", "all": "200 404 499 500 429 broken", "sample:0.999999999": "200 404 499 500 429 broken", "sample:1e-12": "500 429 broken",
	} {
		w, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, status := range []int{200, 404, 499, 500, 429} {
			if w.wants(request("", status)) {
				got = append(got, fmt.Sprint(status))
			}
		}
		broken := request("", 200)
		if broken.Broken = true; w.wants(broken) {
			got = append(got, "broken")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s logs %v, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", "some", "sample", "sample:", "sample:0", "sample:1", "sample:-1", "sample:NaN", "0.5"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestLinesAndReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := New(path, nil, "n1", Which{share: 1})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	l.Observe(request("a\"b", 200))
	read := func(path string) []string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	for begin := time.Now(); read(path)[0] == "" && time.Since(begin) < 10*time.Second; {
		time.Sleep(time.Millisecond) // polls the file
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	again, err := l.Prepare(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Use()
	again.Discard() // is in use, and stays
	l.Set(Which{errors: true})
	l.Observe(request("not logged", 200))
	refused := request("second", 503)
	refused.Decision, refused.Backend, refused.TTFT = nil, "", 0
	refused.Total = 210 * time.Microsecond
	l.Observe(refused)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Observe(request("late", 500))
	first, second := read(path+".1"), read(path)
	if len(first) != 1 || len(second) != 1 || l.Dropped() != 0 {
		t.Fatalf("%q and %q, %d dropped", first, second, l.Dropped())
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(first[0]), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"component": "access", "node": "n1", "id": `a"b`, "client": "search", "peer": "10.0.0.7", "model": "m", "backend": "gpu1", "rung": "cache",
		"status": 200., "attempts": 2., "matched_tokens": 98., "predicted_tokens": 96., "exact": true, "prompt_tokens": 100., "output_tokens": 7., "overhead_us": 40., "queue_ms": 3., "ttft_ms": 50., "total_ms": 1000.,
	} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v", key, line[key], want)
		}
	}
	if _, known := line["cached_tokens"]; known || strings.Contains(first[0], "the prompt") {
		t.Errorf("%s", first[0])
	}
	if !strings.Contains(second[0], `"id":"second"`) || !strings.Contains(second[0], `"total_ms":0.21,`) || strings.Contains(second[0], "ttft_ms") {
		t.Errorf("%s", second[0])
	}
}

// blocked is a disk that does not write until it is released.
type blocked struct {
	release chan struct{}
	mu      sync.Mutex
	buf     bytes.Buffer
	err     error
}

func (b *blocked) Write(p []byte) (int, error) {
	<-b.release
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	return b.buf.Write(p)
}

func TestSlowDiskDelaysNoRequest(t *testing.T) {
	disk := &blocked{release: make(chan struct{})}
	l := New("", disk, "n1", Which{share: 1})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	const sent = 3 * queued
	for range sent {
		l.Observe(request("x", 200)) // returns although nothing is written
	}
	close(disk.release)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	written := bytes.Count(disk.buf.Bytes(), []byte("\n"))
	if dropped := int(l.Dropped()); dropped < sent-2*queued-1 || written+dropped != sent {
		t.Errorf("%d lines written and %d dropped of %d", written, dropped, sent)
	}
}

func TestFailingDiskIsCounted(t *testing.T) {
	disk := &blocked{release: make(chan struct{}), err: errors.New("no space left")}
	close(disk.release)
	l := New("", disk, "n1", Which{share: 1})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		l.Observe(request("x", 200))
	}
	if err := l.Close(); err != nil || l.Dropped() != 10 {
		t.Errorf("%v, %d dropped of 10", err, l.Dropped())
	}
	if err := New(filepath.Join(t.TempDir(), "missing", "f"), nil, "n", Which{}).Open(); err == nil || !strings.Contains(err.Error(), "access_log_file") {
		t.Errorf("a file that cannot be opened: %v", err)
	}
}

// Of a request that follows a rule with another model, a line has the client's model and the engine's.
func TestModelOfARule(t *testing.T) {
	var out bytes.Buffer
	l := New("", &out, "n1", Which{share: 1})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	ruled := request("ruled", 200)
	ruled.Target = []byte("qwen3-8b")
	l.Observe(ruled)
	l.Observe(request("plain", 200))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"model":"m"`) || !strings.Contains(lines[0], `"engine_model":"qwen3-8b"`) || strings.Contains(lines[1], "engine_model") {
		t.Errorf("%s", out.String())
	}
}
