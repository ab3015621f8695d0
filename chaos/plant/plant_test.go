package plant

import (
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grapevine.example/chaos/overlay"
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
		if _, err := os.Stat(name); (err == nil) == (filepath.Base(name) == hookFile) {
			t.Errorf("%s: %v: only hooks are added", name, err)
		}
	}
	if len(files) < 2 {
		t.Errorf("%d files are changed", len(files))
	}
	if _, err := Overlay(t.TempDir()); err == nil {
		t.Error("a directory without the module is planted in")
	}
}

func TestBuilds(t *testing.T) {
	files, err := Overlay(root)
	if err != nil {
		t.Fatal(err)
	}
	list, err := files.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	packages := make(map[string]bool)
	for name := range files {
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		packages["./"+filepath.ToSlash(dir)] = true
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", list}, slices.Sorted(maps.Keys(packages))...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the program with planted defects does not build: adapt chaos/plant: %v\n%s", err, out)
	}
}

func TestNothingOfItIsShipped(t *testing.T) {
	files, err := Overlay(root)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		text, err := os.ReadFile(name)
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
		err := lay(root, overlay.Files{}, "x", e)
		if err == nil || !strings.Contains(err.Error(), filepath.FromSlash(e.File)) {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if err := lay(root, overlay.Files{}, "x", Edit{File: "go.mod", Old: "module grapevine", New: `planted("x") module grapevine`}); err != nil {
		t.Error(err)
	}
}
