//go:build !unix

package fleet

import "os/exec"

// tie does nothing where there are no process groups.
func tie(*exec.Cmd) {}
