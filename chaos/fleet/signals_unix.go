//go:build unix

package fleet

import "syscall"

// What stops a process, and lets it go on.
const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)
