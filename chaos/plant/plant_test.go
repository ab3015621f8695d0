package plant

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func TestFit(t *testing.T) {
	files, err := Overlay(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) == (filepath.Base(name) == hookFile) {
			t.Errorf("%s: %v: only hooks are added", name, err)
		}
	}
	if len(files) < 2 {
		t.Errorf("%d files are changed", len(files))
	}
}

func TestBuilds(t *testing.T) {
	files, err := Overlay(root)
	if err != nil {
		t.Fatal(err)
	}
	dir, top := t.TempDir(), abs(t, root)
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	packages := make(map[string]bool)
	for name, text := range files {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(top, name)] = file
		packages["./"+path.Dir(name)] = true
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", list}, slices.Sorted(maps.Keys(packages))...)...)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the program with planted defects does not build: adapt chaos/plant: %v\n%s", err, out)
	}
}

func abs(t *testing.T, dir string) string {
	t.Helper()
	path, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNothingOfItIsShipped(t *testing.T) {
	files, err := Overlay(root)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil && strings.Contains(string(text), "planted(") {
			t.Errorf("%s asks for planted defects by itself", name)
		}
	}
}

func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, d := range All() {
		if d.Name == "" || d.Breaks == "" || d.Wrong == "" || len(d.Edits) == 0 || seen[d.Name] {
			t.Errorf("defect %q: %+v", d.Name, d)
		}
		seen[d.Name] = true
	}
}

func TestRotten(t *testing.T) {
	for _, e := range []Edit{
		{File: "go.mod", Old: "no such line", New: `planted("x")`},
		{File: "go.mod", Old: "o", New: `planted("x")`},
		{File: "no/such/file.go", Old: "o", New: `planted("x")`},
		{File: "go.mod", Old: "module grapevine", New: "module other"},
	} {
		err := lay(root, map[string]string{}, "x", e)
		if err == nil || !strings.Contains(err.Error(), filepath.FromSlash(e.File)) {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if err := lay(root, map[string]string{}, "x", Edit{File: "go.mod", Old: "module grapevine", New: `planted("x") module grapevine`}); err != nil {
		t.Error(err)
	}
}
