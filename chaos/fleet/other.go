//go:build unix && !linux

package fleet

import (
	"errors"
	"os/exec"
	"syscall"
)

// tie leaves Ctrl-C to the harness. Only Linux ends children with their parent; elsewhere Close
// does.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func onMainThread() bool { return false }

// Isolate works on Linux only.
func Isolate(*exec.Cmd) error { return errors.ErrUnsupported }

func Isolated() bool { return false }

func raiseLoopback() error { return nil }

func linkable() error { return errors.ErrUnsupported }

func newSwitched(uint64, []string) (network, error) { return nil, errors.ErrUnsupported }
