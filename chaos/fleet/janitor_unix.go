//go:build unix

package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// janitor is a process that outlives this one by a moment: when this process ends, of whatever, it removes a directory.
type janitor struct {
	cmd  *exec.Cmd
	life io.Closer // what it reads until it ends
}

// sweep waits for the end of its input, and removes until nothing is left: those who still write are being killed at that time. Nobody is
// told if it gives up after a minute.
const sweep = `cat >/dev/null; n=0; while [ -e "$1" ] && [ $n -lt 600 ]; do rm -rf -- "$1"; [ -e "$1" ] && sleep 0.1; n=$((n+1)); done 2>/dev/null`

func newJanitor(dir string) (*janitor, error) {
	r, w, err := os.Pipe() // only this process has the end that is written to
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/bin/sh", "-c", sweep, "sh", dir)
	cmd.Stdin, cmd.Dir = r, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what ends this process by the keyboard is not for it
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("fleet: a process to remove %s: %w", dir, err), w.Close())
	}
	return &janitor{cmd, w}, nil
}

// Close has the directory removed now and returns when it is gone.
func (j *janitor) Close() error { return errors.Join(j.life.Close(), j.cmd.Wait()) }
