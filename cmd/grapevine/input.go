package main

import (
	"fmt"
	"io"
	"os"
)

// readInput reads the file at path, "-" for stdin, and refuses more than limit bytes.
func readInput(s *streams, path string, limit int64) ([]byte, error) {
	in := s.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, usageError{err}
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, usageError{fmt.Errorf("%s: larger than %d KiB", path, limit>>10)}
	}
	return text, nil
}
