package node

import (
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/node/config"
	"grapevine.example/proxy/clients"
)

func clientsText(keys ...string) string {
	text := "anonymous: refuse\nclients:\n"
	for _, k := range keys {
		hash := clients.HashKey([]byte(k))
		text += "  - {name: of-" + k + ", key_sha256: " + hex.EncodeToString(hash[:]) + "}\n"
	}
	return text
}

func TestClientsFileIsFollowed(t *testing.T) {
	engine := newFakeEngine(t, "m")
	file := filepath.Join(t.TempDir(), "clients.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		soon := time.Now().Add(time.Hour) // file systems' clocks are coarse
		if err := os.Chtimes(file, soon, soon); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testConfig(engine.URL)
	cfg.ClientsFile = file
	var log eventLog
	cfg.Log = log.logger()
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "clients_file") {
		t.Errorf("without the file: %v", err)
	}
	write(clientsText("first"))
	n := startNode(t, cfg)
	status := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(chatBody("m", "hello")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if a, b := status("first"), status("second"); a != 200 || b != 401 {
		t.Fatalf("a known key gets %d, an unknown one %d", a, b)
	}
	write(clientsText("first", "second"))
	eventually(t, "the second client is known", func() bool { return status("second") == 200 })
	// A wrong file changes nothing, and says so.
	write(clientsText("third") + "  - {name: broken}\n")
	eventually(t, "the mistake is shown", func() bool {
		return strings.Contains(n.Clients().Error, ":4: clients[1].key_sha256: broken has no key")
	})
	if a, b := status("first"), status("third"); a != 200 || b != 401 {
		t.Errorf("beside a wrong file a client of before gets %d, one of the file %d", a, b)
	}
	eventually(t, "the mistake is logged", func() bool { return log.has(EventClientsRefused, "broken has no key") })
	write("anonymous: nobody\nclients: []\n")
	eventually(t, "another mistake is logged", func() bool { return log.has(EventClientsRefused, "there is no client") })
	if m := scrape(t, n); m["grapevine_clients"] != 2 || m["grapevine_clients_failing"] != 1 {
		t.Errorf("%v clients, failing %v", m["grapevine_clients"], m["grapevine_clients_failing"])
	}
	if _, err := n.Reload(*n.Running()); err == nil || !strings.Contains(err.Error(), "there is no client") {
		t.Errorf("reload: %v", err)
	}
	write(clientsText("third"))
	if _, err := n.Reload(*n.Running()); err != nil {
		t.Fatal(err)
	}
	if a, b := status("first"), status("third"); a != 401 || b != 200 {
		t.Errorf("after the reload a removed client gets %d, a new one %d", a, b)
	}
	list, err := client(n).Clients(t.Context())
	if err != nil || list.File != file || list.Error != "" || len(list.Clients) != 1 || list.Clients[0].Name != "of-third" || list.Clients[0].Keys != 1 {
		t.Errorf("%+v %v", list, err)
	}
}

// No key, known or not, nor its hash is in an answer, a log, a span or anything that the admin address shows, whatever becomes of the request.
func TestKeysAreNowhere(t *testing.T) {
	engine := newFakeEngine(t, "m")
	var spans strings.Builder
	var mu sync.Mutex
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		spans.Write(body)
	}))
	t.Cleanup(collector.Close)
	dir := t.TempDir()
	file, access := filepath.Join(dir, "clients.yaml"), filepath.Join(dir, "access.log")
	keys := map[string]string{"trusted": "trusted: true", "poor": "tokens_per_minute: 1", "narrow": "models: [other], paths: [/v1]"}
	secrets := map[string]string{"an unknown key": "gv-unknown-secret"}
	text := "anonymous: refuse\nclients:\n"
	for name, more := range keys {
		key, hash := config.NewClientKey()
		text += "  - {name: " + name + ", key_sha256: " + hash + ", " + more + "}\n"
		keys[name], secrets["the key of "+name], secrets["the hash of "+name] = key, key, hash
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(engine.URL)
	var log eventLog
	cfg.ClientsFile, cfg.Log, cfg.AccessLog, cfg.AccessLogFile = file, log.logger(), "all", access
	cfg.OTLPEndpoint, cfg.TraceShare, cfg.QueueRequests = collector.URL, 1, 10
	n := startNode(t, cfg)

	got := make(map[int]int) // answers by status
	sent := 0
	ask := func(method, path, body string, headers ...string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		sent++
		req.Header.Set("X-Request-Id", fmt.Sprintf("number-%d.", sent))
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		_ = res.Header.Write(&all)
		_, err = io.Copy(&all, res.Body)
		if _ = res.Body.Close(); err != nil {
			t.Fatal(err)
		}
		got[res.StatusCode]++
		holdsNone(t, method+" "+path, all.String(), secrets)
	}
	all := func() {
		for _, key := range append(slices.Collect(maps.Values(keys)), secrets["an unknown key"]) {
			for _, header := range []string{"Authorization: Bearer " + key, "x-api-key: " + key, "Authorization: " + key, "Authorization: Basic " + key} {
				for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
					for _, body := range []string{chatBody("m", "hello"), chatBody("unknown", "hello"), `{"model":`} {
						ask(http.MethodPost, path, body, header, "X-Grapevine-Priority: batch")
					}
				}
				ask(http.MethodGet, "/v1/models", "", header)
				ask(http.MethodPost, "/flush_cache", "", header)
				ask(http.MethodPost, "/v1/chat/completions", chatBody("m", "hello"), header, "X-Grapevine-Priority: "+key)
			}
		}
	}
	all()
	engine.Close()
	all() // no engine answers
	for _, status := range []int{200, 400, 401, 403, 404, 429, 502} {
		if got[status] == 0 {
			t.Errorf("no answer with status %d: %v", status, got)
		}
	}
	last := fmt.Sprintf("number-%d.", sent)
	read := func() string {
		text, err := os.ReadFile(access)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	eventually(t, "the last request is in the access log", func() bool { return strings.Contains(read(), last) })
	holdsNone(t, "access_log", read(), secrets)
	eventually(t, "spans", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(spans.String(), "trusted")
	})
	mu.Lock()
	holdsNone(t, "the spans", spans.String(), secrets)
	mu.Unlock()
	for _, path := range []string{
		"/metrics", "/status", "/nodes", "/history", "/receipts", "/backends", "/doctor", "/clients", "/queue", "/rules", "/raft", "/prefixes",
		"/prefixes/tree", "/keys",
	} {
		w := httptest.NewRecorder()
		n.adminServer().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code == http.StatusNotFound || w.Body.Len() == 0 {
			t.Errorf("%s: status %d, %d bytes", path, w.Code, w.Body.Len())
		}
		holdsNone(t, path, w.Body.String(), secrets)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.out.Len() == 0 {
		t.Error("nothing is logged")
	}
	holdsNone(t, "the log", log.out.String(), secrets)
	t.Logf("%d requests, answers by status %v, %d bytes of log", sent, got, log.out.Len())
}

func holdsNone(t *testing.T, what, text string, secrets map[string]string) {
	t.Helper()
	for name, s := range secrets {
		if strings.Contains(text, s) {
			t.Errorf("%s holds %s", what, name)
		}
	}
}
