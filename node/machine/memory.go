// Package machine says what the system lets this process have: memory and descriptors. It changes
// nothing and keeps no state.
package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that this process may use: the least limit of its cgroup and of
// those around it (version 2 and 1), or else the machine's. limited says that a cgroup sets it. 0: the
// system does not say.
func Memory() (size int64, limited bool) { return memory(os.DirFS("/")) }

// memory reads below root. A cgroup's path is the host's; in a container without a namespace of its own
// only the end of the walk, the root of the mount, exists, and is the container's cgroup.
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

// number reads a file that holds one number; 0 if there is none ("max": no limit).
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

// machineMemory is the memory of the whole machine, 0 if the system does not say.
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
