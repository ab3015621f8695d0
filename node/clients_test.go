package node

import (
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
