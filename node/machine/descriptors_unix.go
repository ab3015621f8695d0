//go:build unix

package machine

import (
	"math"
	"syscall"
)

// Descriptors returns how many files and connections this process may have open, 0 if the system does
// not say. The Go runtime has raised the soft limit to the hard one by then.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // FreeBSD has int64
}
