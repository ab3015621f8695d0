//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// moment holds the CPU time spent until now: by a contender and the backend, by this program with
// all it started, and by the whole machine.
type moment struct {
	at                             time.Time
	contender, backend, ours, busy time.Duration
}

// readMoment takes process ids; 0 stands for no process.
func readMoment(contender, backend int) (m moment, err error) {
	m.at = time.Now()
	m.contender, _ = usageOf(contender)
	m.backend, _ = usageOf(backend)
	m.ours, _ = usageOf(os.Getpid())
	var ended syscall.Rusage // of children, like wrk
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ended); err != nil {
		return m, err
	}
	m.ours += time.Duration(ended.Utime.Nano() + ended.Stime.Nano())
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return m, err
	}
	stat, err := fs.Stat()
	c := stat.CPUTotal
	m.busy = seconds(c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal)
	return m, err
}

// usageOf returns CPU time and resident bytes of a process with its descendants.
func usageOf(pid int) (cpu time.Duration, rss int64) {
	all, _ := procfs.AllProcs()
	children := map[int][]procfs.ProcStat{}
	var family []procfs.ProcStat
	for _, p := range all {
		s, err := p.Stat()
		if err != nil {
			continue // it has ended
		}
		children[s.PPID] = append(children[s.PPID], s)
		if s.PID == pid {
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

func machine() string {
	model := "unknown CPU"
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if info, err := fs.CPUInfo(); err == nil && len(info) > 0 {
			model = info[0].ModelName
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d CPUs, Linux %s", model, runtime.NumCPU(), strings.TrimSpace(string(kernel)))
}
