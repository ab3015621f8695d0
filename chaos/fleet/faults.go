package fleet

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// Faults that some machines or programs cannot produce.
const (
	FaultLinks        = "links"
	FaultHAProxy      = "haproxy"
	FaultInstrumented = "instrumented" // StepClock, FillDisk, HangDisk, SlowDisk
)

// Pause stops the process with SIGSTOP; its connections stay open.
func (n *Node) Pause() error { return n.signal(syscall.SIGSTOP) }

func (n *Node) Resume() error { return n.signal(syscall.SIGCONT) }

// UseBinary sets the program of the node's next process.
func (n *Node) UseBinary(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = path
}

// Supports returns why a fault does not work here with that program, or nil. Links need a process
// of Isolate. Callers must report faults that they leave out.
func Supports(fault, program string) error {
	switch fault {
	case FaultLinks:
		return errors.Join(linkable(), isolatable())
	case FaultHAProxy:
		_, err := findHAProxy()
		return err
	case FaultInstrumented:
		return instrumented(program)
	}
	return fmt.Errorf("fleet: no fault is called %q", fault)
}

func isolatable() error {
	if Isolated() {
		return nil
	}
	cmd := exec.Command("true")
	if err := Isolate(cmd); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fleet: no network namespaces: %w %s", err, out)
	}
	return nil
}
