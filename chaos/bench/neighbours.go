//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Other programs distort figures invisibly, so measurements wait, within a limit, for a quiet
// moment, and record the other programs' share.

const quietShare = 0.1

type machineTime struct {
	at   time.Time
	busy time.Duration
	ours time.Duration
}

func readMachineTime() (machineTime, error) {
	m := machineTime{at: time.Now()}
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
	pids, err := family(os.Getpid())
	if err != nil {
		return m, err
	}
	for _, p := range pids {
		if cpu, err := cpuTime(p); err == nil {
			m.ours += cpu
		}
	}
	ended, err := endedChildren(os.Getpid())
	m.ours += ended
	return m, err
}

func othersSince(before machineTime) (float64, error) {
	now, err := readMachineTime()
	if err != nil {
		return 0, err
	}
	all := now.at.Sub(before.at) * time.Duration(cpuCount())
	others := (now.busy - before.busy) - (now.ours - before.ours)
	return max(0, float64(others)/float64(all)), nil
}

// awaitQuiet returns at the first quiet moment or after patience, and how long it waited beyond the
// first look.
func awaitQuiet(ctx context.Context, patience time.Duration) (waited time.Duration, err error) {
	if patience <= 0 {
		return 0, nil
	}
	start := time.Now()
	for {
		before, err := readMachineTime()
		if err != nil {
			return 0, err
		}
		waited := time.Since(start)
		timer := time.NewTimer(300 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return waited, ctx.Err()
		}
		share, err := othersSince(before)
		if err != nil || share <= quietShare || waited >= patience {
			return waited, err
		}
	}
}
