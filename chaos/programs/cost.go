//go:build linux

package programs

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Usage returns CPU time and resident bytes of processes with their descendants. Those that have
// ended, and 0, count as nothing.
func Usage(pids ...int) (cpu time.Duration, rss int64) {
	all, _ := procfs.AllProcs()
	children := map[int][]procfs.ProcStat{}
	var family []procfs.ProcStat
	for _, p := range all {
		s, err := p.Stat()
		if err != nil {
			continue // it has ended
		}
		children[s.PPID] = append(children[s.PPID], s)
		if slices.Contains(pids, s.PID) {
			family = append(family, s)
		}
	}
	for i := 0; i < len(family); i++ {
		cpu += seconds(family[i].CPUTime())
		rss += int64(family[i].ResidentMemory())
		family = append(family, children[family[i].PID]...)
	}
	return cpu, rss
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Busy returns the CPU time spent until now by the whole machine, and by this process with all that
// it started.
func Busy() (machine, ours time.Duration, err error) {
	ours, _ = Usage(os.Getpid())
	var ended syscall.Rusage // of children, like wrk
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ended); err != nil {
		return 0, 0, err
	}
	ours += time.Duration(ended.Utime.Nano() + ended.Stime.Nano())
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := fs.Stat()
	c := stat.CPUTotal
	return seconds(c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal), ours, err
}

// Machine names processor, CPUs and kernel.
func Machine() string {
	model := "unknown CPU"
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if info, err := fs.CPUInfo(); err == nil && len(info) > 0 {
			model = info[0].ModelName
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d CPUs, Linux %s", model, runtime.NumCPU(), strings.TrimSpace(string(kernel)))
}
