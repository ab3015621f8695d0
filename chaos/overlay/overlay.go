// Package overlay gives a build other sources than those on disk (go build -overlay).
package overlay

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files is the text of source files by path. Of files that are not in it, a build takes those on disk.
type Files map[string]string

// Edit replaces old in a file, which must have it once after the edits before.
func (f Files) Edit(path, old, text string) error {
	source, changed := f[path]
	if !changed {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%w: name the file that has this code now", err)
		}
		source = string(raw)
	}
	if n := strings.Count(source, old); n != 1 {
		return fmt.Errorf("%s has this %d times, want once: adapt the edit to the code as it is now\n%s", path, n, old)
	}
	f[path] = strings.Replace(source, old, text, 1)
	return nil
}

// Write writes the files into dir and returns the path of what go build -overlay takes.
func (f Files) Write(dir string) (list string, err error) {
	replace := make(map[string]string, len(f))
	for i, path := range slices.Sorted(maps.Keys(f)) {
		original, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		replace[original] = filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(path)))
		if err := os.WriteFile(replace[original], []byte(f[path]), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, text, 0o600)
}
