package fleet_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grapevine.example/chaos/fleet"
)

// TestMain fails if a goroutine is left, except fasthttp's for the Date header and net/http's
// closing connections.
func TestMain(m *testing.M) {
	if path := os.Getenv(orphanEnv); path != "" {
		os.Exit(orphan(path))
	}
	code := m.Run()
	printFigures(os.Stdout)
	built.remove()
	if code == 0 {
		if err := goleak.Find(
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
			goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const orphanEnv = "GRAPEVINE_TEST_ORPHAN"

func orphan(path string) int {
	cfg := fleet.Config{Binary: os.Getenv("GRAPEVINE"), Nodes: 3, Engines: 1, NoBalancer: true}
	if fleet.Isolated() {
		cfg.Switched = fleet.Supports(fleet.FaultLinks, "") == nil
		cfg.HAProxy = fleet.Supports(fleet.FaultHAProxy, "") == nil
		cfg.NoBalancer = !cfg.HAProxy
	}
	f, err := fleet.Start(context.Background(), cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := f.Nodes()[0].Pause(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	text := f.Dir() + "\n"
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return 1
	}
	if err := os.Rename(path+".new", path); err != nil {
		return 1
	}
	time.Sleep(10 * time.Minute)
	return 1
}

var built binary

type binary struct {
	once sync.Once
	path string
	dir  string
	err  error
}

func (b *binary) make() {
	if b.path = os.Getenv("GRAPEVINE"); b.path != "" {
		return
	}
	if b.dir, b.err = os.MkdirTemp("", "grapevine-test-"); b.err != nil {
		return
	}
	b.path = filepath.Join(b.dir, "grapevine")
	cmd := exec.Command("go", "build", "-o", b.dir+"/", "grapevine.example/cmd/grapevine", "grapevine.example/cmd/grapevine-lab")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("%w\n%s", err, out)
	}
}

func (b *binary) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

func grapevine(t *testing.T) string {
	t.Helper()
	built.once.Do(built.make)
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func lab(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(grapevine(t)), "grapevine-lab")
}
