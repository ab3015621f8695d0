//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/<pid>/stat times: Linux fixes USER_HZ at 100 on Go's
// architectures.
const clockTick = 10 * time.Millisecond

type usage struct {
	cpu time.Duration
	rss int64
}

func processUsage(pid int) (usage, error) {
	var u usage
	pids, err := family(pid)
	if err != nil {
		return u, err
	}
	for _, p := range pids {
		cpu, err := cpuTime(p)
		if err != nil {
			continue
		}
		u.cpu += cpu
		u.rss += residentBytes(p)
	}
	return u, nil
}

func cpuTime(pid int) (time.Duration, error) { return statTime(pid, 11) }

func endedChildren(pid int) (time.Duration, error) { return statTime(pid, 13) }

// statTime is the sum of two neighbouring stat fields, user and system time; at counts from the
// field after the command.
func statTime(pid, at int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f, err := afterCommand(raw)
	if err != nil {
		return 0, err
	}
	user, err1 := strconv.ParseInt(f[at], 10, 64)
	system, err2 := strconv.ParseInt(f[at+1], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("bad stat of process %d", pid)
	}
	return time.Duration(user+system) * clockTick, nil
}

// afterCommand splits a stat line after "pid (command)", because a command may hold blanks and
// parentheses. Field 0 is the state.
func afterCommand(raw []byte) ([]string, error) {
	i := bytes.LastIndexByte(raw, ')')
	if i < 0 {
		return nil, fmt.Errorf("bad stat line")
	}
	f := strings.Fields(string(raw[i+1:]))
	if len(f) < 22 {
		return nil, fmt.Errorf("short stat line")
	}
	return f, nil
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

func family(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		f, err := afterCommand(raw)
		if err != nil {
			continue
		}
		p, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(f[1])
		children[parent] = append(children[parent], p)
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

func machine() string {
	model := "unknown CPU"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := ""
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(raw))
	}
	mem := ""
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		if f := strings.Fields(string(raw)); len(f) > 1 {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			mem = fmt.Sprintf("%d GiB", (kb+1<<19)>>20)
		}
	}
	return fmt.Sprintf("%s, %d CPUs, %s, Linux %s", model, cpuCount(), mem, kernel)
}
