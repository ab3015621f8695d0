//go:build unix

package machine

import (
	"math"
	"syscall"
)

// Descriptors returns how many files this process may open, 0 if unknown. The Go runtime has raised
// the soft limit to the hard one.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // FreeBSD has int64
}
