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

const controlEnv = "CHAOS_CONTROL_FILE"

// The words of the control file, each an int64.
const (
	stepWord = iota // how far the wall clock is ahead of the machine's, in nanoseconds
	lookedWord
	diskWord // a constant below; above them: extra nanoseconds per write and sync
	words
)

const (
	diskWorks = 0
	diskFull  = 1
	diskHangs = 2
)

var errNotInstrumented = errors.New("this program has no clock and disk faults: build one by make build-chaos and give --router bin/grapevine-chaos")

const instrumentedWithin = 30 * time.Second

// control is not safe for concurrent use.
type control struct{ path string }

// change rewrites a word; those of a new file are 0.
func (c control) change(word int64, to func(was int64) int64) (err error) {
	f, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var raw [8]byte
	if err := f.Truncate(8 * words); err != nil {
		return err
	}
	if _, err := f.ReadAt(raw[:], 8*word); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(raw[:], uint64(to(int64(binary.LittleEndian.Uint64(raw[:])))))
	_, err = f.WriteAt(raw[:], 8*word)
	return err
}

func constant(v int64) func(int64) int64 { return func(int64) int64 { return v } }

func (c control) reset() error { return c.change(lookedWord, constant(0)) }

func (c control) looked() error {
	text, err := os.ReadFile(c.path)
	if err == nil && (len(text) != 8*words || binary.LittleEndian.Uint64(text[8*lookedWord:]) != 1) {
		err = errNotInstrumented
	}
	return err
}

// StepClock moves the node's wall clock by d, in addition to earlier steps, also after restarts.
// Needs FaultInstrumented.
func (n *Node) StepClock(d time.Duration) error {
	return n.instruct(stepWord, func(was int64) int64 { return was + int64(d) })
}

// FillDisk makes file writes fail with ENOSPC until HealDisk, overwrites included, as on a
// copy-on-write file system. Like HangDisk and SlowDisk it survives restarts and needs
// FaultInstrumented.
func (n *Node) FillDisk() error { return n.setDisk(diskFull) }

// HangDisk blocks file writes and syncs of the node until HealDisk.
func (n *Node) HangDisk() error { return n.setDisk(diskHangs) }

// SlowDisk delays every file write and sync of the node until HealDisk.
func (n *Node) SlowDisk(by time.Duration) error { return n.setDisk(max(int64(by), diskHangs+1)) }

// HealDisk ends disk faults; blocked calls continue. The node need not run.
func (n *Node) HealDisk() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.control.change(diskWord, constant(diskWorks))
}

func (n *Node) setDisk(to int64) error { return n.instruct(diskWord, constant(to)) }

func (n *Node) instruct(word int64, change func(was int64) int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := errNotRunning
	if n.proc.running() {
		err = n.control.looked()
	}
	if err == nil {
		err = n.control.change(word, change)
	}
	return n.named(err)
}

// instrumented runs the program with the argument version, except a test program, which would run
// its tests.
func instrumented(program string) (err error) {
	if info, err := buildinfo.ReadFile(program); err == nil && strings.HasSuffix(info.Path, ".test") {
		return fmt.Errorf("%s is a test: %w", program, errNotInstrumented)
	}
	ctx, cancel := context.WithTimeout(context.Background(), instrumentedWithin)
	defer cancel()
	dir, err := os.MkdirTemp("", "grapevine-control-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := control{filepath.Join(dir, "control")}
	if err := c.reset(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "version")
	cmd.Env = append(os.Environ(), controlEnv+"="+c.path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s version: %w: %s", program, err, out)
	}
	if err := c.looked(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}
