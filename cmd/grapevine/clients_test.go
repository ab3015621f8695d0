package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine.example/node/config"
)

// What new prints belongs to the key that it prints, and check accepts it.
func TestNewClient(t *testing.T) {
	got := grapevine(t, "", "clients", "new", "search", "--json")
	var made struct {
		Name, Key string
		Hash      string `json:"key_sha256"`
	}
	if err := json.Unmarshal([]byte(got.out), &made); got.code != 0 || err != nil {
		t.Fatalf("%+v %v", got, err)
	}
	text := "anonymous: refuse\nclients:\n  - {name: search, key_sha256: " + made.Hash + "}\n"
	book, err := config.ParseClients("", []byte(text))
	if err != nil || book.Find([]byte(made.Key)) == nil || len(made.Key) < 40 {
		t.Errorf("%+v, %v", made, err)
	}
	file := filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := grapevine(t, "", "clients", "check", file); got.code != 0 || !strings.HasSuffix(got.out, "1 clients; requests without a key are refused\n") {
		t.Errorf("%+v", got)
	}
	if got := grapevine(t, text+"  - {name: search}\n", "clients", "check", "-"); got.code != exitFailed || !strings.Contains(got.err, "-:4: clients[1].key_sha256: search has no key") {
		t.Errorf("%+v", got)
	}
	plain := grapevine(t, "", "clients", "new", "search")
	if first, rest, _ := strings.Cut(plain.out, "\n"); plain.code != 0 || !strings.HasPrefix(first, "gv-") || strings.Contains(rest, first) || first == made.Key {
		t.Errorf("%+v", plain)
	}
	if got := grapevine(t, "", "clients", "new", "two words"); got.code != exitUsage || !strings.Contains(got.err, "is not one word") {
		t.Errorf("%+v", got)
	}
}
