package fleet

import (
	"context"
	"debug/buildinfo"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// clockEnv names the file through which a program that is built by chaos/clock lets its wall clock be stepped: two int64, the step in
// nanoseconds, and 1 once the program looks.
const clockEnv = "CHAOS_CLOCK_FILE"

// errNoClock is returned for a program with an ordinary clock.
var errNoClock = errors.New("its program has no clock that can be stepped (make build-chaos makes one that has)")

// steppableWithin bounds how long a program may take to tell its version.
const steppableWithin = 30 * time.Second

// clock is such a file. Not safe for concurrent use.
type clock struct{ path string }

// write puts a number into the file, which is made if it is not there.
func (c clock) write(word int, v int64) (err error) {
	f, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || info.Size() < 16 {
		if err = errors.Join(err, f.Truncate(16)); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(v)), int64(8*word))
	return err
}

func (c clock) read(word int) (int64, error) {
	text, err := os.ReadFile(c.path)
	if err != nil {
		return 0, err
	}
	if len(text) != 16 {
		return 0, fmt.Errorf("%s has %d bytes, want 16", c.path, len(text))
	}
	return int64(binary.LittleEndian.Uint64(text[8*word:])), nil
}

// reset is for a process that is about to start: nobody looks yet.
func (c clock) reset() error { return c.write(1, 0) }

// looked says whether the process that was started last looks.
func (c clock) looked() (bool, error) {
	v, err := c.read(1)
	return v == 1, err
}

// StepClock moves the node's wall clock by d, which is added to what it was moved before. Monotonic time goes on as it did. It lasts
// over restarts of the node. The node's program must be built for it; see Steppable.
func (n *Node) StepClock(d time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.stepClockLocked(d)
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

func (n *Node) stepClockLocked(d time.Duration) error {
	if n.proc == nil || !n.proc.running() {
		return errNotRunning
	}
	if ok, err := n.clock.looked(); err != nil || !ok {
		return errors.Join(err, errNoClock)
	}
	was, err := n.clock.read(0)
	if err != nil {
		return err
	}
	return n.clock.write(0, was+int64(d))
}

// Steppable returns nil if a program's clock can be stepped, else why not. It runs the program with the argument version, unless that is a
// test program, which would run its tests.
func Steppable(program string) (err error) {
	if info, err := buildinfo.ReadFile(program); err == nil && strings.HasSuffix(info.Path, ".test") {
		return fmt.Errorf("%s: a test program: %w", program, errNoClock)
	}
	ctx, cancel := context.WithTimeout(context.Background(), steppableWithin)
	defer cancel()
	dir, err := os.MkdirTemp("", "grapevine-clock-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := clock{filepath.Join(dir, "clock")}
	if err := c.reset(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "version")
	cmd.Env = append(os.Environ(), clockEnv+"="+c.path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s version: %w: %s", program, err, out)
	}
	if ok, err := c.looked(); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("%s: %w", program, errNoClock))
	}
	return nil
}
