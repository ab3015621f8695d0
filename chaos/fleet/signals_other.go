//go:build !unix

package fleet

import "syscall"

// Where there is nothing that stops a process, sending these is an error.
const (
	stopSignal     = syscall.Signal(-1)
	continueSignal = syscall.Signal(-2)
)
