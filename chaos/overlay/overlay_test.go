package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A build takes edited and added files in place of those on disk, which stay as they are.
func TestBuild(t *testing.T) {
	dir := t.TempDir()
	source := "package main\n\nfunc main() { print(one) }\n\nconst one = 1\n"
	for name, text := range map[string]string{"go.mod": "module m\n", "m.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := Files{filepath.Join(dir, "added.go"): "package main\n\nconst two = 2\n"}
	for _, e := range [][2]string{{"one = 1", "one = two"}, {"= two", "= two + 40"}} {
		if err := f.Edit(filepath.Join(dir, "m.go"), e[0], e[1]); err != nil {
			t.Fatal(err)
		}
	}
	list, err := f.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "-C", dir, "run", "-overlay", list, ".").CombinedOutput(); err != nil || string(out) != "42" {
		t.Errorf("%q, %v", out, err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "m.go")); err != nil || string(now) != source {
		t.Errorf("on disk: %q, %v", now, err)
	}
}

func TestEditsThatDoNotFit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("twice twice"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, old := range map[string]string{file: "twice", file + "/": "twice", file + "x": "twice"} {
		if err := (Files{}).Edit(name, old, ""); err == nil || !strings.Contains(err.Error(), "this") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Files{}).Edit(file, "once", ""); err == nil {
		t.Error("a text that is not there is replaced")
	}
}
