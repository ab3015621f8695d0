package fleet

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
)

// Faults that some machines cannot produce. Supports tests all but FaultInstrumented, for which
// Instrumented tests the program.
const (
	FaultLinks   = "links"
	FaultHAProxy = "haproxy"

	FaultCertificates = "certificates"
	FaultInstrumented = "instrumented" // StepClock, FillDisk, HangDisk, SlowDisk: depend on the program, see Instrumented
)

// Pause stops the process with SIGSTOP. Its connections stay open and peers get no notice.
func (n *Node) Pause() error { return n.Signal(stopSignal) }

// Resume continues a paused process.
func (n *Node) Resume() error { return n.Signal(continueSignal) }

// UseBinary makes path the program of the node's next process.
func (n *Node) UseBinary(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = path
}

// Supports tries whether a fault works here and returns nil or the reason. Links need a process of
// Isolate. Callers must report faults that they leave out.
func Supports(fault string) error {
	switch fault {
	case FaultLinks:
		return errors.Join(linkable(), isolatable())
	case FaultCertificates:
		return nil
	case FaultHAProxy:
		_, err := findHAProxy()
		return err
	}
	return fmt.Errorf("fleet: %s: no such fault", fault)
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
