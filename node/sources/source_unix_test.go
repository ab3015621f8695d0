//go:build unix

package sources

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSourceIsNoPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backends")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := newSource("file:" + path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.read(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}
