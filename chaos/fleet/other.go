//go:build !linux

package fleet

import (
	"errors"
	"os/exec"
)

// Isolate works on Linux only.
func Isolate(*exec.Cmd) error { return errors.ErrUnsupported }

// Isolated is always false here.
func Isolated() bool { return false }

func raiseLoopback() error { return nil }
