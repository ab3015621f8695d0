package fleet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tie makes the kernel kill the process when the thread that starts it ends, which is at the latest
// when this process dies. Its own process group leaves a Ctrl-C to the harness, which ends it in
// order.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func onMainThread() bool { return unix.Gettid() == unix.Getpid() }

// clockTick is the unit of times in /proc/PID/stat, fixed at 1/100 s.
const clockTick = 10 * time.Millisecond

func usageOf(pid int) (Usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The command is in parentheses and may contain blanks and parentheses. Fields after it, from
	// 0: state, ..., 11 user time, 12 system time, ..., 21 resident pages.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 22 {
		return Usage{}, fmt.Errorf("short stat of process %d", pid)
	}
	var n [3]int64
	for i, at := range []int{11, 12, 21} {
		if n[i], err = strconv.ParseInt(f[at], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("stat of process %d: %w", pid, err)
		}
	}
	return Usage{CPU: time.Duration(n[0]+n[1]) * clockTick, RSS: n[2] * int64(os.Getpagesize())}, nil
}
