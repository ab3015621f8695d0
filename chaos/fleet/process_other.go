//go:build !linux

package fleet

import (
	"errors"
	"os/exec"
)

// dieWithParent does nothing: only Linux ends children with their parent. Close ends them all the same.
func dieWithParent(*exec.Cmd) {}

func onMainThread() bool { return false }

func usageOf(int) (Usage, error) { return Usage{}, errors.ErrUnsupported }
