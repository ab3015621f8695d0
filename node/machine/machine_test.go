package machine

import (
	"testing"
	"testing/fstest"
)

func TestMemory(t *testing.T) {
	const gib = int64(1 << 30)
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	meminfo := file("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
	for name, tc := range map[string]struct {
		files   fstest.MapFS
		size    int64
		limited bool
	}{
		"nothing": {fstest.MapFS{}, 0, false},
		"machine": {fstest.MapFS{"proc/meminfo": meminfo}, 16 * gib, false},
		"v2": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/system.slice/grapevine.service\n"),
			"sys/fs/cgroup/system.slice/grapevine.service/memory.max": file("1073741824\n")}, gib, true},
		"v2, the parent is narrower": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max": file("max\n"), "sys/fs/cgroup/a/memory.max": file("2147483648\n")}, 2 * gib, true},
		"v2, slowed before it is ended": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a\n"),
			"sys/fs/cgroup/a/memory.max": file("2147483648\n"), "sys/fs/cgroup/a/memory.high": file("1073741824\n")}, gib, true},
		"v2, its own namespace": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("1073741824\n")}, gib, true},
		"v2, unlimited": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a\n"),
			"sys/fs/cgroup/a/memory.max": file("max\n")}, 16 * gib, false},
		"v1": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("9:name=systemd:/\n4:cpu,memory:/x\n0::/\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("1073741824\n")}, gib, true},
		"v1, in a container": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("4:memory:/docker/0123\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("1073741824\n")}, gib, true},
		"v1, unlimited": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("4:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 16 * gib, false},
	} {
		t.Run(name, func(t *testing.T) {
			if size, limited := memory(tc.files); size != tc.size || limited != tc.limited {
				t.Errorf("%d, %v; want %d, %v", size, limited, tc.size, tc.limited)
			}
		})
	}
	if size, _ := Memory(); size <= 0 {
		t.Skip("this system does not say what memory it has")
	}
}
