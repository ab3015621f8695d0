// Package machine reads how much memory and how many descriptors the system grants this process.
package machine

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// Memory returns the bytes this process may use, 0 if unknown; limited means that a cgroup (v1 or
// v2) sets them.
func Memory() (size int64, limited bool) { return memory(os.DirFS("/")) }

// Without a cgroup namespace, a container sees the host's cgroup path, of which only the mount's
// root exists: its own cgroup.
func memory(root fs.FS) (size int64, limited bool) {
	size = machineMemory(root)
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return size, false // no cgroups
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		var files []string
		switch {
		case fields[0] == "0" && fields[1] == "": // version 2
			files = []string{"sys/fs/cgroup%/memory.max", "sys/fs/cgroup%/memory.high"}
		case strings.Contains(","+fields[1]+",", ",memory,"): // version 1
			files = []string{"sys/fs/cgroup/memory%/memory.limit_in_bytes"}
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			for _, file := range files {
				limit := number(root, strings.Replace(file, "%", strings.TrimSuffix(dir, "/"), 1))
				if limit > 0 && (size == 0 || limit < size) {
					size, limited = limit, true
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return size, limited
}

func number(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func machineMemory(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "MemTotal:")
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[1] != "kB" {
		return 0
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

// Descriptors returns how many files this process may open, 0 if unknown. The Go runtime has raised
// the soft limit to the hard one.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // FreeBSD has int64
}
