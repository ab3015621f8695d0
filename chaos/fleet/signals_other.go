//go:build !unix

package fleet

import "syscall"

// Without stop signals, sending these is an error.
const (
	stopSignal     = syscall.Signal(-1)
	continueSignal = syscall.Signal(-2)
)
