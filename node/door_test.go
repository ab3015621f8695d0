package node

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/node/config"
	"grapevine.example/proxy/clients"
)

// The battery: whatever clients try, an engine receives only what it may. proxy/DESIGN.md lists all of it.

// controlPaths are what vLLM, SGLang and TensorRT-LLM serve beside inference, on the same port and mostly without a key.
var controlPaths = []string{
	"/abort_request", "/add_volume", "/clear_hicache_storage_backend", "/close_session", "/collective_rpc", "/configure_logging", "/continue_generation",
	"/destroy_weights_update_group", "/docs", "/dump_lora", "/encode", "/flush_cache", "/freeze_gc", "/generate_from_file", "/get_internal_state", "/get_load",
	"/get_model_info", "/get_server_info", "/get_weights_by_name", "/health", "/health_generate", "/init_weights_update_group", "/invocations",
	"/is_paused", "/is_scaling_elastic_ep", "/is_sleeping", "/kv_cache_events", "/kv_event_sources", "/load_lora_adapter", "/metrics", "/model_info",
	"/open_session", "/openapi.json", "/parse_function_call", "/pause", "/pause_generation", "/pd_role_switch", "/ping", "/query", "/redoc",
	"/release_memory_occupation", "/reset_mm_cache", "/reset_prefix_cache", "/resume", "/resume_memory_occupation", "/scale_elastic_ep",
	"/separate_reasoning", "/server_info", "/set_internal_state", "/set_trace_level", "/shutdown", "/sleep", "/slow_down", "/start_expert_distribution_record",
	"/start_profile", "/stop_profile", "/unload_lora_adapter", "/update_weights", "/update_weights_from_disk", "/update_weights_from_distributed",
	"/update_weights_from_tensor", "/v1/batches", "/v1/files", "/v1/chat/completions/render", "/v1/load_lora_adapter", "/v1/loads", "/v1/unload_lora_adapter",
	"/v1/messages/batches", "/v1/realtime", "/version", "/wake_up",
}

// disguises of a control path. Servers resolve some of them to it.
func disguises(path string) []string {
	bare := path[1:]
	return []string{
		path, path + "/", path + "?model=m", path + "?/v1/chat/completions", path + "#/v1/chat/completions", path + ";/v1/chat/completions", path + "%3f", path + "%00",
		path + "%20", path + "%0d%0aX: y", path + "\t", path + "\x00", path + ".", path + "/.", "/" + path, "//v1/.." + path, "/." + path, "/;" + path, "/%2e" + path, "/v1/.." + path,
		"/v1/..;" + path, "/v1/%2e%2e" + path, "/v1/%252e%252e" + path, "/v1/%c0%ae%c0%ae" + path, "/v1/..%2f" + bare, "/v1/..%5c" + bare, `/v1/..\` + bare, `\` + bare,
		"/v1/chat/completions/.." + path, "/v1/chat/completions/../../.." + path, "/v1/chat/completions/..;/..;/.." + path, "/v1/chat/completions%2f..%2f..%2f.." + path,
		"/v1/chat/completions;/../../.." + path, "/v1/responses/..%2f.." + path, "/v1/responses/../.." + path, "/v1/responses/%2e%2e/%2e%2e" + path,
		"/v1/responses/x/cancel/../../../.." + path, "/v1/models/../.." + path, "/v1/models/..%2f.." + path, "/healthz/.." + path, "/readyz" + path,
		"/%" + hex.EncodeToString([]byte(bare[:1])) + bare[1:], strings.ToUpper(path), "http://a" + path, "http://a/v1/.." + path, "http://a//" + bare, bare, "//a" + path, "*", "",
	}
}

// steeringMembers make an engine fetch from other hosts, answer with another prompt's text, or crash.
var steeringMembers = []string{
	"kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "data_parallel_rank",
	"data_parallel_rank_decode", "routed_dp_rank", "disagg_prefill_dp_rank", "decode_tp_size", "kv_cache_report_mode",
}

var steeringHeaders = []string{"X-Data-Parallel-Rank", "X-data-parallel-host-port", "x-override-bootstrap-host", "x-override-bootstrap-room", "X-Override-Rid",
	"x-prefiller-host-port", "x-encoder-hosts-ports"}

var inferencePaths = []string{
	"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens", "/generate", "/tokenize",
	"/detokenize", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/pooling",
}

var multipartPaths = []string{"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"}

// smuggledBodies hide the member where a parser other than the router's could find it.
func smuggledBodies(member string) []string {
	const value = `{"remote_host":"10.0.0.1"}`
	escaped := fmt.Sprintf(`\u%04x`, member[0]) + member[1:]
	return []string{
		`{"model":"llama","` + member + `":` + value + `}`,
		`{"` + member + `":` + value + `,"model":"llama"}`,
		`{"` + member + `":1,"model":"llama","` + member + `":` + value + `}`,
		`{"model":"llama","` + escaped + `":` + value + `}`,
		`{"model":"llama","` + escaped + `":1,"` + member + `":2,"` + escaped + `":3}`,
		`{"model":"llama", "` + member + "\" \t\r\n:" + value + `, "stream":true}`,
		`{"model":"llama","vllm_xargs":{"` + member + `":` + value + `,"a":1}}`,
		`{"model":"llama","vllm_xargs":{"a":1},"vllm_xargs":{"` + escaped + `":"full"}}`,
		`{"model":"llama","messages":[{"role":"user","content":"\"},\"` + member + `\":1"}],"` + member + `":` + value + `}`,
	}
}

// Bodies that engines read and strict parsers do not; a member could hide in them.
func unreadableBodies() map[string]string {
	const steering = `{"model":"llama","kv_transfer_params":{"remote_host":"10.0.0.1"}`
	var wide []byte
	for _, c := range []byte(steering + "}") {
		wide = append(wide, c, 0)
	}
	return map[string]string{
		"UTF-16": string(wide), "UTF-16 with a mark": "\xff\xfe" + string(wide), "UTF-8 with a mark": "\xef\xbb\xbf" + steering + "}", "NaN": steering + `,"x":NaN}`,
		"Infinity": steering + `,"x":-Infinity}`, "lone surrogate": steering + `,"x":"\ud800"}`, "deep": steering + `,"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + "}",
		"single quotes": "{'model':'llama'}", "comment": `{"model":"llama"/**/}`, "trailing comma": `{"model":"llama",}`, "two values": `{"model":"llama"}` + steering + "}",
		"array": "[" + steering + "}]", "NUL": "{\x00}", "control character": "{\"model\":\"llama\",\"x\":\"\n\"}", "cut off": steering,
	}
}

// doorEngine serves everything that it is asked, and records the bytes of all but the node's own questions.
type doorEngine struct {
	addr string
	mu   sync.Mutex
	seen []doorRequest
	odd  []string // bytes that are no request
}

type doorRequest struct {
	*http.Request
	raw, body []byte
}

// ownQuestions are what a node asks engines by itself.
var ownQuestions = []string{"GET /v1/models", "GET /metrics", "GET /v1/loads", "GET /health", "GET /server_info", "GET /kv_event_sources"}

const engineKey = "sk-of-the-engine"

func newDoorEngine(t *testing.T) *doorEngine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &doorEngine{addr: ln.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); serving.Wait() }) // the node, which ends first, closes the connections
	return e
}

func (e *doorEngine) serve(c net.Conn) {
	defer c.Close()
	var raw bytes.Buffer
	in := bufio.NewReader(io.TeeReader(c, &raw))
	for {
		_, err := in.Peek(1)
		if err != nil {
			return
		}
		req, err := http.ReadRequest(in)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(req.Body)
		}
		e.mu.Lock()
		// Requests arrive one by one, so what was read is one request, or several where one was announced.
		switch {
		case err != nil:
			e.odd = append(e.odd, raw.String())
		case req.Header.Get("X-Forwarded-For") != "" || !slices.Contains(ownQuestions, req.Method+" "+req.URL.Path):
			e.seen = append(e.seen, doorRequest{req, bytes.Clone(raw.Bytes()[:raw.Len()-in.Buffered()]), body})
		}
		e.mu.Unlock()
		rest := raw.Bytes()[raw.Len()-in.Buffered():]
		raw = *bytes.NewBuffer(bytes.Clone(rest))
		if err != nil {
			return
		}
		answer := `{"object":"list","data":[{"id":"llama"},{"id":"gpt"}]}`
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer); err != nil {
			return
		}
	}
}

// take returns what was recorded since the last call.
func (e *doorEngine) take() (seen []doorRequest, odd []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen, odd, e.seen, e.odd = e.seen, e.odd, nil, nil
	return seen, odd
}

var tokenName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^`|~-]+$")

// wrong says what the engine should not have received of the client; models nil allows all.
func (r *doorRequest) wrong(models []string) string {
	switch {
	case r.Method == "POST" && slices.Contains(append(slices.Clone(inferencePaths), multipartPaths...), r.URL.Path) && r.URL.EscapedPath() == r.URL.Path:
	case (r.Method == "GET" || r.Method == "HEAD" || r.Method == "OPTIONS") && regexp.MustCompile(`^/v1/responses/[A-Za-z0-9_]+$`).MatchString(r.URL.EscapedPath()):
		return ""
	default:
		return "method and path"
	}
	head, _, _ := bytes.Cut(r.raw, []byte("\r\n\r\n"))
	lines := strings.Split(string(head), "\r\n")
	count := map[string]int{}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		known := strings.ToLower(name)
		count[known]++
		switch {
		case !tokenName.MatchString(name) || strings.ContainsAny(value, "\r\n\x00"):
			return "header line " + line
		case known == "transfer-encoding", known == "te", known == "trailer", known == "upgrade", known == "keep-alive", known == "expect", known == "http2-settings",
			strings.HasPrefix(known, "proxy-"), strings.HasPrefix(known, "x-hop"), known == "x-api-key", known == "connection" && value != " close":
			return "header of another hop: " + line
		case slices.ContainsFunc(steeringHeaders, func(h string) bool { return strings.EqualFold(h, name) }):
			return "steering header " + line
		}
	}
	for _, once := range []string{"host", "content-length", "authorization", "x-forwarded-for", "x-request-id"} {
		if count[once] != 1 {
			return fmt.Sprintf("%d headers %s", count[once], once)
		}
	}
	if got := r.Header.Get("Authorization"); got != "Bearer "+engineKey {
		return "Authorization: " + got
	}
	if !strings.HasSuffix(r.Header.Get("X-Forwarded-For"), "127.0.0.1") {
		return "X-Forwarded-For: " + r.Header.Get("X-Forwarded-For")
	}
	if bytes.Contains(r.raw, []byte("gv-key-")) {
		return "a client's key"
	}
	if slices.Contains(multipartPaths, r.URL.Path) && models == nil {
		return "" // not read by the router
	}
	return wrongMembers(r.body, models)
}

// wrongMembers reads all members, repeated ones, too: parsers differ in which one they take.
func wrongMembers(body []byte, models []string) string {
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return "no JSON object"
	}
	model := ""
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err.Error()
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return err.Error()
		}
		if slices.Contains(steeringMembers, name.(string)) {
			return "member " + name.(string)
		}
		inner, _ := value.(map[string]any)
		for _, member := range steeringMembers {
			if _, has := inner[member]; has && name == "vllm_xargs" {
				return "member vllm_xargs." + member
			}
		}
		switch name {
		case "model":
			model, _ = value.(string)
		case "lora_path":
			if models != nil && value != nil && !slices.Contains(models, fmt.Sprint(value)) {
				return fmt.Sprint("adapter ", value)
			}
		}
	}
	if models != nil && !slices.Contains(models, model) {
		return "model " + model
	}
	return ""
}

// door is a router with a clients file in front of the recording engine.
type door struct {
	t      *testing.T
	engine *doorEngine
	addr   string
	tried  int
}

// doorClients by name: what each may use; nil for everything.
var doorClients = map[string][]string{"anyone": nil, "limited": {"llama"}, "trusted": nil}

func newDoor(t *testing.T) *door {
	engine := newDoorEngine(t)
	text := "anonymous: refuse\nclients:\n"
	for name, models := range doorClients {
		hash := clients.HashKey([]byte("gv-key-" + name))
		text += fmt.Sprintf("  - {name: %s, key_sha256: %s, trusted: %v", name, hex.EncodeToString(hash[:]), name == "trusted")
		if models != nil {
			text += ", models: [" + strings.Join(models, ", ") + "]"
		}
		text += "}\n"
	}
	cfg := testConfig()
	cfg.ClientsFile = filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(cfg.ClientsFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Backends = []config.Backend{{URL: "http://" + engine.addr, Name: "e", Models: []string{"llama", "gpt", "sql"}, APIKey: engineKey}}
	return &door{t: t, engine: engine, addr: startNode(t, cfg).Addr()}
}

// send writes bytes, in which KEY stands for the client's key, reads until the router has nothing to add, and returns
// the first status; 0 if it closed the connection without one.
func (d *door) send(client, raw string) int {
	d.t.Helper()
	d.tried++
	c, err := net.Dial("tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, strings.ReplaceAll(raw, "KEY", "gv-key-"+client)); err != nil {
		return 0
	}
	in := bufio.NewReader(c)
	method, _, _ := strings.Cut(raw, " ")
	status := 0
	for {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			return status
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if status == 0 {
			status = resp.StatusCode
		}
		if resp.Close || !strings.Contains(raw, "\r\n\r\nGET /after") {
			return status
		}
	}
}

// attack sends the same as every client and without a key, and requires that the engine received nothing wrong; and nothing, where the
// router did not answer 200.
func (d *door) attack(name, raw string, want func(status int) bool) {
	d.t.Helper()
	for _, client := range []string{"nobody", "anyone", "limited", "trusted"} {
		status := d.send(client, raw)
		seen, odd := d.engine.take()
		for _, bytes := range odd {
			d.t.Errorf("%s as %s: the engine received what is no request: %q", name, client, bytes)
		}
		for i := range seen {
			if why := seen[i].wrong(doorClients[client]); why != "" || client == "nobody" || status != 200 {
				d.t.Errorf("%s as %s: status %d, and the engine received (%s)\n%s", name, client, status, why, seen[i].raw)
			}
		}
		switch {
		case client == "nobody" && (status == 0 || status >= 400 && status < 600), want(status), client == "limited" && status == 403:
		default:
			d.t.Errorf("%s as %s: status %d", name, client, status)
		}
		if status == 200 && client != "nobody" && len(seen) != 1 {
			d.t.Errorf("%s as %s: status 200 of %d requests", name, client, len(seen))
		}
	}
}

func refused(status int) bool {
	return status == 0 || status >= 400 && status < 500 || status == 501 || status == 505
}
func cleaned(status int) bool { return status == 200 }
func either(status int) bool  { return refused(status) || cleaned(status) }

func doorPost(path, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer KEY\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(append(headers, ""), "\r\n"), len(body), body)
}

const doorBody = `{"model":"llama","messages":[]}`

func TestDoorPaths(t *testing.T) {
	d := newDoor(t)
	for _, path := range controlPaths {
		d.attack("path "+path, doorPost(path, doorBody), refused)
	}
	for _, path := range []string{"/flush_cache", "/v1/load_lora_adapter", "/metrics"} {
		for _, disguised := range disguises(path) {
			d.attack("path "+disguised, doorPost(disguised, doorBody), refused)
		}
		for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PROPFIND", "post", "GETX"} {
			d.attack(method+" "+path, strings.Replace(doorPost(path, ""), "POST", method, 1), refused)
		}
	}
	t.Logf("%d requests", d.tried)
}

// A path that differs from an inference path in one character is not served; stored responses have plain ids.
func TestDoorAlmostInference(t *testing.T) {
	d := newDoor(t)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages/count_tokens", "/generate", "/v1/audio/speech"} {
		for _, other := range disguises(path)[1:] {
			if tail, same := strings.CutPrefix(other, path); same && (strings.HasPrefix(tail, "?") || strings.HasPrefix(tail, "#")) || other == "http://a"+path {
				continue // the same path
			}
			d.attack("path "+other, doorPost(other, doorBody), refused)
		}
	}
	for _, id := range []string{"..", ".", "%2e%2e", "a/b", "a%2fb", "", "/", "a/cancel/b", "a;b", "a\\b", "a//cancel"} {
		d.attack("response "+id, strings.Replace(doorPost("/v1/responses/"+id, ""), "POST", "GET", 1), refused)
		d.attack("cancel "+id, doorPost("/v1/responses/"+id+"/cancel", ""), refused)
	}
}

func TestDoorMembers(t *testing.T) {
	d := newDoor(t)
	for _, member := range steeringMembers {
		for i, body := range smuggledBodies(member) {
			for j, path := range inferencePaths {
				if j == i || j == 0 { // each form at chat, and at one more
					d.attack(path+" "+body, doorPost(path, body), cleaned)
				}
			}
		}
	}
	for name, body := range unreadableBodies() {
		d.attack(name, doorPost("/v1/chat/completions", body), refused)
	}
	for _, coding := range []string{"gzip", "br", "identity, gzip", "deflate", "zstd", "x"} {
		d.attack(coding, doorPost("/v1/chat/completions", doorBody, "Content-Encoding: "+coding), refused)
	}
	t.Logf("%d requests", d.tried)
}

func TestDoorModels(t *testing.T) {
	d := newDoor(t)
	for body, want := range map[string]func(int) bool{
		`{"model":"gpt","model":"llama"}`:                              cleaned, // engines take the last
		`{"mod\u0065l":"llama"}`:                                       cleaned,
		`{"model":"ll\u0061ma","lora_path":null}`:                      cleaned,
		`{"model":"llama","model":"gpt"}`:                              either,
		`{"model":"llama","mod\u0065l":"gpt"}`:                         either,
		`{"model":"llama","MODEL":"gpt"}`:                              either,
		`{"model":["llama"]}`:                                          either,
		`{"model":null}`:                                               either,
		`{"model":{"model":"llama"}}`:                                  either,
		`{"messages":[{"model":"llama"}]}`:                             either,
		`{"model":"llama\u0000gpt"}`:                                   either,
		`{"model":" llama"}`:                                           either,
		`{"model":"llama","lora_path":"sql"}`:                          either,
		`{"model":"llama","lora_path":["llama","sql"]}`:                either,
		`{"model":"llama","lora_path":"llama","lora\u005fpath":"sql"}`: either,
		`{"model":"llama:sql"}`:                                        either,
		`{"model":"llama","messages":[],"extra_body":{"model":"gpt"}}`: either,
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages"} {
			d.attack(path+" "+body, doorPost(path, body), want)
		}
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ngpt\r\n--b--\r\n"
	for _, path := range multipartPaths { // whose model the router does not read
		d.attack(path, doorPost(path, form, "Content-Type: multipart/form-data; boundary=b"), either)
		d.attack(path+"?model=llama", doorPost(path+"?model=llama", form, "Content-Type: multipart/form-data; boundary=b", "X-Model: llama"), either)
	}
}

func TestDoorHeaders(t *testing.T) {
	d := newDoor(t)
	served := func(headers ...string) {
		d.t.Helper()
		d.attack(strings.Join(headers, ", "), doorPost("/v1/chat/completions", doorBody, headers...), cleaned)
	}
	bad := func(headers ...string) {
		d.t.Helper()
		d.attack(strings.Join(headers, ", "), doorPost("/v1/chat/completions", doorBody, headers...), refused)
	}
	for _, name := range steeringHeaders {
		for _, form := range []string{name, strings.ToUpper(name), strings.ReplaceAll(name, "-", "_"), strings.Replace(name, "-", "_", 1)} {
			served(form + ": 1")
			served("Connection: "+form, form+": 1", form+": 2")
		}
		for _, form := range []string{name + " ", name + "\t", name + "\x00", name + "\v", " " + name, "\t" + name, "X-A: b\r" + name, "X-A: b\n" + name, "X-A: b\r\n " + name} {
			bad(form + ": 1")
		}
	}
	// Only the router names the client's address, the engine's key and the length, and nominating them removes them only from the client's part.
	for _, name := range []string{"Authorization", "X-Api-Key", "Host", "Content-Length", "X-Forwarded-For", "X-Request-Id", "Connection", "close, keep-alive"} {
		served("Connection: " + name)
	}
	served("X-Hop: 1", "Connection: x-hop, X-HOP-2", "x-hop-2: 2", "Keep-Alive: timeout=1", "Proxy-Connection: close", "Proxy-Authorization: Basic eA==", "TE: trailers",
		"Upgrade: h2c", "HTTP2-Settings: AA")
	for _, spoofed := range []string{"X-Forwarded-For: 10.0.0.1", "X_Forwarded_For: 10.0.0.1", "X-Forwarded_For: 10.0.0.1", "x-forwarded-for: 127.0.0.1, 10.0.0.1",
		"X-Api-Key: sk-other", "X-Api-Key: gv-key-trusted", "x_api_key: gv-key-trusted"} {
		served(spoofed)
	}
	for _, spoofed := range []string{"authorization: Bearer gv-key-trusted", "AUTHORIZATION: Bearer sk-of-the-engine", "Authorization:"} {
		d.attack(spoofed, doorPost("/v1/chat/completions", doorBody, spoofed), cleaned) // the first one counts
	}
	served("X-HTTP-Method-Override: DELETE", "X-Original-URL: /flush_cache", "X-Rewrite-URL: /flush_cache", "X-Forwarded-Prefix: /flush_cache", "X-Forwarded-Host: b", "Forwarded: for=10.0.0.1")
	served(strings.Repeat("X-A: b\r\n", 50) + "X-A: b")
	bad("Connection: " + strings.Repeat("a,", 100) + "x-hop")
}

// Bytes behind or inside one request never become another one.
func TestDoorSmuggling(t *testing.T) {
	d := newDoor(t)
	const smuggled = "POST /flush_cache HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
	post := func(headers, body string) string {
		return "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer KEY\r\n" + headers + "\r\n" + body
	}
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	for name, raw := range map[string]string{
		"length and coding":         post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled),
		"coding and length":         post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"+smuggled),
		"two lengths":               post(fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n", len(smuggled)), smuggled),
		"length with a plus":        post("Content-Length: +0\r\n", smuggled),
		"length with an underscore": post("Content_Length: 0\r\nTransfer_Encoding: chunked\r\n", smuggled),
		"empty length":              post("Content-Length:\r\n", smuggled),
		"coding with a tab":         post("Transfer-Encoding: chunked\t\r\nContent-Length: 0\r\n", "0\r\n\r\n"+smuggled),
		"coding, vertical tab":      post("Transfer-Encoding: \vchunked\r\n", "0\r\n\r\n"+smuggled),
		"coding in a folded line":   post("X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n"+smuggled),
		"coding twice":              post("Transfer-Encoding: chunked\r\nTransfer-encoding: x\r\n", "0\r\n\r\n"+smuggled),
		"coding behind a CR":        post("X-A: b\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled),
		"chunk size with a sign":    post("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n0\r\n\r\n"+smuggled),
		"chunk size overflow":       post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n"+smuggled),
		"chunk ends early":          post("Transfer-Encoding: chunked\r\n", "5\r\nabc\r\n0\r\n\r\n"+smuggled),
	} {
		d.attack(name, raw, refused)
	}
	// These have one meaning, so the request is served, and what follows is a request of its own, without a key.
	after := "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	for name, raw := range map[string]string{
		"plain":           doorPost("/v1/chat/completions", doorBody) + after,
		"chunks":          post("Transfer-Encoding: chunked\r\n", chunk(doorBody[:7])+chunk(doorBody[7:])+"0\r\n\r\n"+after),
		"trailers":        post("Transfer-Encoding: chunked\r\nTrailer: X-Hop\r\n", chunk(doorBody)+"0\r\nX-Hop: 1\r\nX-Data-Parallel-Rank: 3\r\nAuthorization: Bearer x\r\n\r\n"+after),
		"a chunk of text": post("Transfer-Encoding: chunked\r\n", chunk(`{"model":"llama","x":"`+strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(smuggled)+`"}`)+"0\r\n\r\n"+after),
	} {
		d.attack(name, raw, either)
	}
}

// The judge finds what the battery looks for.
func TestDoorJudge(t *testing.T) {
	e := newDoorEngine(t)
	post := func(path, body string, headers ...string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 127.0.0.1\r\nX-Request-Id: a\r\n%sContent-Length: %d\r\n\r\n%s", path,
			strings.Join(append(headers, ""), "\r\n"), len(body), body)
	}
	key := "Authorization: Bearer " + engineKey
	judge := func(raw string) string {
		c, err := net.Dial("tcp", e.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, raw)
		_, _ = http.ReadResponse(bufio.NewReader(c), nil)
		seen, odd := e.take()
		if len(seen) != 1 || len(odd) > 0 {
			return fmt.Sprintf("%d requests, %q", len(seen), odd)
		}
		return seen[0].wrong(doorClients["limited"])
	}
	chat := "/v1/chat/completions"
	if why := judge(post(chat, doorBody, key)); why != "" {
		t.Errorf("a request as it should be: %s", why)
	}
	for name, raw := range map[string]string{
		"path": post("/flush_cache", doorBody, key), "disguised path": post("/v1/chat%2fcompletions", doorBody, key), "method": strings.Replace(post(chat, doorBody, key), "POST", "PUT", 1),
		"no key": post(chat, doorBody), "client's key": post(chat, doorBody, "Authorization: Bearer gv-key-limited"), "two keys": post(chat, doorBody, key, key),
		"key elsewhere": post(chat, doorBody, key, "X-A: gv-key-limited"), "steering header": post(chat, doorBody, key, "x-data-parallel-rank: 1"),
		"hop": post(chat, doorBody, key, "TE: trailers"), "underscore": post(chat, doorBody, key, "X_A: 1"), "member": post(chat, `{"model":"llama","bootstrap_host":1}`, key),
		"escaped member": post(chat, `{"model":"llama","bootstrap\u005fhost":1}`, key), "inner member": post(chat, `{"model":"llama","vllm_xargs":{"kv_transfer_params":1}}`, key),
		"model": post(chat, `{"model":"llama","model":"gpt"}`, key), "adapter": post(chat, `{"model":"llama","lora_path":"sql"}`, key), "no JSON": post(chat, "text", key),
		"nonsense": "nonsense\r\n\r\n",
	} {
		if judge(raw) == "" {
			t.Errorf("%s passes", name)
		}
	}
}
