package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

type janitor struct {
	cmd  *exec.Cmd
	life io.Closer // its standard input: the end of it is the signal
}

// sweep removes the directory for up to a minute, because killed processes may still write.
const sweep = `cat >/dev/null; n=0; while [ -e "$1" ] && [ $n -lt 600 ]; do rm -rf -- "$1"; [ -e "$1" ] && sleep 0.1; n=$((n+1)); done 2>/dev/null`

func newJanitor(dir string) (*janitor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/bin/sh", "-c", sweep, "sh", dir)
	cmd.Stdin, cmd.Dir = r, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must not end it
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("fleet: a process to remove %s: %w", dir, err), w.Close())
	}
	return &janitor{cmd, w}, nil
}

// Close removes the directory.
func (j *janitor) Close() error { return errors.Join(j.life.Close(), j.cmd.Wait()) }
