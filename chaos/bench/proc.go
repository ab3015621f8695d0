//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/<pid>/stat times: Linux fixes USER_HZ at 100 on Go's
// architectures.
const clockTick = 10 * time.Millisecond

func cpuCount() int { return runtime.NumCPU() }

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
	ended, err := statTime(os.Getpid(), 13) // of children, like wrk
	if err != nil {
		return m, err
	}
	m.ours += ended
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal ...
	if len(f) < 9 || f[0] != "cpu" {
		return m, fmt.Errorf("bad /proc/stat")
	}
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		ticks, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return m, fmt.Errorf("bad /proc/stat: %w", err)
		}
		m.busy += time.Duration(ticks) * clockTick
	}
	return m, nil
}

// usageOf returns CPU time and resident bytes of a process with its descendants.
func usageOf(pid int) (cpu time.Duration, rss int64) {
	if pid == 0 {
		return 0, 0
	}
	for _, p := range family(pid) {
		t, err := statTime(p, 11)
		if err != nil {
			continue // it has ended
		}
		cpu += t
		rss += residentBytes(p)
	}
	return cpu, rss
}

// statTime is the sum of two neighbouring stat fields, user and system time.
func statTime(pid, at int) (time.Duration, error) {
	f := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	if f == nil {
		return 0, fmt.Errorf("no stat of process %d", pid)
	}
	user, err1 := strconv.ParseInt(f[at], 10, 64)
	system, err2 := strconv.ParseInt(f[at+1], 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// statOf returns the fields behind "pid (command)", because a command may hold blanks and
// parentheses, or nil if the process has ended. Field 0 is the state.
func statOf(path string) []string {
	raw, _ := os.ReadFile(path)
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 22 {
		return nil
	}
	return f
}

func residentBytes(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// family returns the ids of a process and its descendants.
func family(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := map[int][]int{}
	for _, path := range stats {
		if f := statOf(path); f != nil {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

func machine() string {
	model := "unknown CPU"
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(cpuinfo)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, %d CPUs, Linux %s", model, cpuCount(), strings.TrimSpace(string(kernel)))
}
