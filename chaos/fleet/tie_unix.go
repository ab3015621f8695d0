//go:build unix && !linux

package fleet

import (
	"os/exec"
	"syscall"
)

// tie gives the process a group of its own, so that a Ctrl-C reaches the harness alone. Only Linux
// ends children with their parent; elsewhere Close ends them.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
