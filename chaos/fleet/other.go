//go:build unix && !linux

package fleet

import (
	"errors"
	"os/exec"
	"syscall"

	"grapevine/chaos/netswitch"
)

// tie gives the process a group of its own, so that a Ctrl-C reaches the harness alone. Only Linux
// ends children with their parent; elsewhere Close ends them.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func onMainThread() bool { return false }

// Isolate works on Linux only.
func Isolate(*exec.Cmd) error { return errors.ErrUnsupported }

// Isolated is always false here.
func Isolated() bool { return false }

func raiseLoopback() error { return nil }

func linkable() error { return netswitch.Available() }

func newSwitched(uint64, []string) (network, error) { return nil, errors.ErrUnsupported }
