//go:build !linux

package fleet

import (
	"errors"
	"os/exec"
)

// Isolate is for Linux only.
func Isolate(*exec.Cmd) error { return errors.ErrUnsupported }

// Isolated is false where there are no network namespaces.
func Isolated() bool { return false }

func raiseLoopback() error { return nil }
