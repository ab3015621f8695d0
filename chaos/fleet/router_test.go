package fleet_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"grapevine.example/chaos/fleet"
)

func TestFindRouter(t *testing.T) {
	program := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inPath, given := program("grapevine"), program("grapevine-chaos")
	t.Setenv("PATH", filepath.Dir(inPath))
	for from, want := range map[string]string{"": inPath, given: given} {
		if got, err := fleet.FindRouter(from); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", from, got, err, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	for _, from := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if got, err := fleet.FindRouter(from); !errors.Is(err, fleet.ErrNoRouter) {
			t.Errorf("%q: %q, %v", from, got, err)
		}
	}
}
