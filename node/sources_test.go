package node

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBackendsFromFile(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	path := filepath.Join(t.TempDir(), "backends")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(e.URL + "\n")
	cfg := testConfig()
	cfg.BackendsFrom = []string{"file:" + path}
	n := startNode(t, cfg)
	eventually(t, "the engine is added", func() bool { return len(n.BackendList().Backends) == 1 })
	if code := chatCode(t, n, "hello"); code != 200 {
		t.Errorf("answered %d", code)
	}
	if s := n.BackendList().Backends[0].Source; s != "file" {
		t.Errorf("source %q", s)
	}
	write("- " + e.URL + "\n- nonsense\n")
	eventually(t, "the mistake is shown", func() bool { return n.BackendList().Sources[0].Error != "" })
	if len(n.BackendList().Backends) != 1 {
		t.Error("a broken file removed an engine")
	}
}
