package main

import (
	"archive/zip"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// go install builds a released version of the module from a module proxy, which is a directory here: other modules come from the
// cache of downloads. So the module path is one that go install accepts, go.mod replaces nothing, and the program says
// which version it is without the Makefile.
//
// make test-packages runs it: it compiles every package of the router as one of a module that Go's build cache does not know.
func TestGoInstall(t *testing.T) {
	if os.Getenv("GRAPEVINE_PACKAGES") == "" {
		t.Skip("make test-packages runs it")
	}
	const module, version = "grapevine.example", "v1.2.3"
	files, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("a version of a module has the files that git knows, and this is no checkout")
	}
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy", module, "@v")
	write(t, filepath.Join(proxy, "list"), version+"\n")
	write(t, filepath.Join(proxy, version+".info"), `{"Version":"`+version+`","Time":"2026-11-24T00:00:00Z"}`)
	write(t, filepath.Join(proxy, version+".mod"), string(read(t, "../../go.mod")))
	out, err := os.Create(filepath.Join(proxy, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(out)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		w, err := archive.Create(module + "@" + version + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache, beyond, _ := strings.Cut(strings.TrimSpace(string(env)), "\n") // a proxy for what was never downloaded
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "go", "install", "-trimpath", module+"/cmd/grapevine@"+version)
	install.Dir = dir
	// A module cache of its own: in the shared one, another tree of this version might be.
	install.Env = append(os.Environ(), "GOMODCACHE="+filepath.Join(dir, "cache"), "GOBIN="+dir, "GOFLAGS=-modcacherw", "GOTOOLCHAIN=local", "CGO_ENABLED=0",
		"GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+filepath.Join(cache, "cache", "download")+","+beyond, "GOSUMDB=off", "GOWORK=off")
	began := time.Now()
	if text, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	said, err := exec.CommandContext(ctx, filepath.Join(dir, "grapevine"), "--version").Output()
	if err != nil || !strings.HasPrefix(string(said), "grapevine "+version+" (") {
		t.Errorf("--version: %q, %v", said, err)
	}
	t.Logf("%safter %.0f s", said, time.Since(began).Seconds())
}
