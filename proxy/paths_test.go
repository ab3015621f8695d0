package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"grapevine.example/proxy/policy"
)

type keyed struct{ Picker }

func (k keyed) Pick(q *policy.Request, a *policy.Attempt) (Target, error) {
	t, err := k.Picker.Pick(q, a)
	t.Header = [][2]string{{"Authorization", "Bearer ROUTERKEY"}}
	return t, err
}

// ask uses the client's key and a new connection.
func (r *rig) ask(method, target, body string, headers ...string) reply {
	r.t.Helper()
	c := r.dial()
	defer c.Close()
	_, err := io.WriteString(c, request(method, target, body, append(headers, "Authorization: Bearer client")...))
	must(r.t, err)
	return readReply(r.t, bufio.NewReader(c), method)
}

const inference = `{"model":"m","messages":[]}`

// No engine sees a control endpoint's path, plain or disguised.
func TestOnlyInferencePathsAreServed(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.PassPaths, c.Models = nil, func(string, func([]byte) bool) []byte { return nil } }))
	r.proxy.cfg.Picker = keyed{r.proxy.cfg.Picker}
	for _, path := range []string{
		"/sleep", "/wake_up", "/collective_rpc", "/update_weights", "/pause", "/resume", "/invocations", "/v1/load_lora_adapter",
		"/v1/unload_lora_adapter", "/flush_cache", "/reset_prefix_cache", "/update_weights_from_disk", "/release_memory_occupation",
		"/abort_request", "/start_profile", "/shutdown", "/scale_elastic_ep", "/server_info", "/metrics", "/docs", "/openapi.json", "/version",
		"/health", "/v1/files/x", "/v1/batches", "/v1/chat/completions/render", "/v1/chat/completions/", "/V1/chat/completions", "/",
		"/v1/responses/a/b", "/v1/responses//cancel", "/v1/responses/a/cancel/x", "/v1/responses/", "/v1/modelsx",
		"/v1/../sleep", "/v1/%2e%2e/sleep", "/%2e%2e/sleep", "/v1/models/../../sleep", "/v1%2fchat%2fcompletions", "/%73leep", "//sleep",
		"/v1//chat/completions", "/v1/./chat/completions", "/v1/responses/..%2f..%2fsleep", "/v1/responses/%2e%2e/cancel", "/v1/responses/..",
		"/v1/chat/completions/..;/../../sleep", "/v1/responses/..\\..\\sleep", "/v1/chat/completions;x", "/v1/chat/completions%3f",
	} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			rp := r.ask(method, path, "{}")
			if rp.StatusCode != 404 && rp.StatusCode != 400 && !(rp.StatusCode == 405 && rp.Header.Get("Allow") != "") {
				t.Errorf("%s %s: %d %s", method, path, rp.StatusCode, rp.body)
			}
		}
	}
	for _, req := range b.requests() {
		t.Errorf("reached the engine: %s", req.raw)
	}
	r.ask("POST", "/sleep", "{}").want(t, 404, `"code":"path_not_served"`, `"type":"not_found_error"`, "pass_paths")
	r.ask("POST", "/v1/messages/batches", "{}").want(t, 404, `{"type":"error","error":{"type":"not_found_error"`, "pass_paths")
	r.ask("POST", "/v1/../sleep", "{}").want(t, 400, `"code":"bad_path"`)
	for _, tc := range [][2]string{
		{"POST", "/v1/chat/completions"}, {"POST", "/v1/completions"}, {"POST", "/v1/responses"}, {"POST", "/v1/embeddings"}, {"POST", "/v1/messages"},
		{"POST", "/v1/messages/count_tokens"}, {"POST", "/generate"}, {"POST", "/tokenize"}, {"POST", "/detokenize"}, {"POST", "/score"},
		{"POST", "/rerank"}, {"POST", "/pooling"}, {"POST", "/v1/audio/transcriptions"}, {"POST", "/v1/audio/translations"},
		{"POST", "/v1/audio/speech"}, {"POST", "/v1/images/generations"}, {"POST", "/v1/images/edits"}, {"GET", "/v1/responses/resp_1?stream=true"},
		{"POST", "/v1/responses/resp_1/cancel"}, {"OPTIONS", "/v1/chat/completions"}, {"POST", "http://grapevine/v1/chat/completions"},
	} {
		before := len(b.requests())
		r.ask(tc[0], tc[1], inference).want(t, 200)
		if got := b.requests()[before].Header["Authorization"]; fmt.Sprint(got) != "[Bearer ROUTERKEY]" {
			t.Errorf("%s %s: Authorization %q", tc[0], tc[1], got)
		}
	}
}

// Opened paths keep the client's credential.
func TestPassPathsAreOpenedWithoutTheEnginesKey(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.PassPaths = []string{"/classify", "/v1/files/"} }))
	r.proxy.cfg.Picker = keyed{r.proxy.cfg.Picker}
	for _, path := range []string{"/classify", "/classify/x?y=%2e", "/v1/files/a", "/v1/files"} {
		before := len(b.requests())
		r.ask("POST", path, "{}").want(t, 200)
		if got := b.requests()[before].Header["Authorization"]; fmt.Sprint(got) != "[Bearer client]" {
			t.Errorf("%s: Authorization %q", path, got)
		}
	}
	n := len(b.requests())
	for _, path := range []string{"/classifyx", "/classif", "/classify/../sleep", "/classify/%2e%2e/sleep", "/classify//sleep", "/v1/filesx", "/v1"} {
		if rp := r.ask("POST", path, "{}"); rp.StatusCode != 404 && rp.StatusCode != 400 {
			t.Errorf("%s: %d", path, rp.StatusCode)
		}
	}
	if len(b.requests()) != n {
		t.Errorf("reached the engine: %s", b.requests()[n].raw)
	}
	for _, bad := range []string{"", "classify", "/a/../b", "/a%2f", "/a//b", "/a?b", "/a b"} {
		cfg := Config{Picker: &routed{}, Hasher: mustHasher(t), PassPaths: []string{bad}}
		if _, err := New(cfg); err == nil {
			t.Errorf("PassPaths %q is taken", bad)
		}
	}
}

func TestWrongMethods(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.PassPaths = nil }))
	for _, tc := range [][3]string{
		{"GET", "/v1/chat/completions", "POST, OPTIONS"}, {"DELETE", "/v1/messages", "POST, OPTIONS"}, {"PUT", "/v1/audio/speech", "POST, OPTIONS"},
		{"DELETE", "/v1/responses/r", "GET, HEAD, OPTIONS"}, {"GET", "/v1/responses/r/cancel", "POST, OPTIONS"}, {"POST", "/v1/models", "GET, HEAD, OPTIONS"},
		{"DELETE", "/v1/models/m", "GET, HEAD, OPTIONS"}, {"POST", "/readyz", "GET, HEAD"}, {"POST", "/healthz", "GET, HEAD"},
	} {
		rp := r.ask(tc[0], tc[1], "").want(t, http.StatusMethodNotAllowed)
		if got := rp.Header.Get("Allow"); got != tc[2] {
			t.Errorf("%s %s: Allow %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
	if n := len(b.requests()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
}

// Other upgrades are ignored.
func TestWebSocketIsRefused(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	for _, path := range []string{"/v1/realtime", "/v1/chat/completions"} {
		rp := r.ask("GET", path, "", "Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x").
			want(t, http.StatusNotImplemented, `"code":"websocket_not_served"`)
		if !rp.Close {
			t.Error("the connection is kept")
		}
	}
	if n := len(b.requests()); n != 0 {
		t.Fatalf("%d requests reached the engine", n)
	}
	r.ask("POST", "/v1/chat/completions", inference, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA").want(t, 200)
}

// Steering members could hide in them.
func TestBodiesThatCannotBeReadAreRefused(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	const steering = `{"kv_transfer_params":{"remote_host":"10.0.0.1"},"messages":[]`
	var wide strings.Builder
	for _, c := range []byte(steering + "}") {
		wide.Write([]byte{c, 0})
	}
	for name, body := range map[string]string{
		"UTF-16": wide.String(), "NaN": steering + `,"temperature":NaN}`, "BOM": "\xef\xbb\xbf" + steering + "}", "lone surrogate": steering + `,"x":"\ud800"}`,
		"deep": steering + `,"x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + "}",
	} {
		if rp := r.ask("POST", "/v1/chat/completions", body); rp.StatusCode != 400 || !strings.Contains(rp.body, `"code":"invalid_json"`) {
			t.Errorf("%s: %d %s", name, rp.StatusCode, rp.body)
		}
	}
	r.ask("POST", "/v1/completions", steering+"}", "Content-Encoding: gzip").want(t, 415, `"code":"encoded_body"`)
	r.ask("POST", "/v1/messages", "{", "X-A: b").want(t, 400, `"type":"invalid_request_error"`, "at byte")
	if n := len(b.requests()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
	if rec := r.record(0); rec.Status != 400 && rec.Status != 415 || rec.Attempts != 0 {
		t.Errorf("record %+v", rec)
	}
}
