//go:build unix && !linux

package fleet

import (
	"os/exec"
	"syscall"
)

// tie gives the process a group of its own, so that a Ctrl-C at the terminal is for the harness alone. Only Linux ends children with
// their parent; Close ends them all the same.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
