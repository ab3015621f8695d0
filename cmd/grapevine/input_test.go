package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 1024)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		limit int64
		want  string // in the error; "" for none
	}{
		{file, 1024, ""},
		{file, 1023, file},
		{"-", 1024, ""},
		{"-", 1023, "-: larger"},
		{file + ".old", 1024, "no such file"},
	} {
		text, err := readInput(&streams{in: strings.NewReader(strings.Repeat("y", 1024))}, c.path, c.limit)
		switch usage := (usageError{}); {
		case c.want == "" && (err != nil || len(text) != 1024):
			t.Errorf("%s of at most %d: %d bytes, %v", c.path, c.limit, len(text), err)
		case c.want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s of at most %d: %v", c.path, c.limit, err)
		}
	}
}
