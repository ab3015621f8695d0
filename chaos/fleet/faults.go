package fleet

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
)

// What Supports can be asked for: the faults that not every machine can do.
const (
	FaultLinks   = "links"   // SetLink, ResetLink, Partition: Config.Switched
	FaultHAProxy = "haproxy" // Config.HAProxy

	FaultCertificates = "certificates" // ExpireCertificate: Config.Certificates
	FaultInstrumented = "instrumented" // StepClock, FillDisk, HangDisk, SlowDisk: it depends on the router's program, see Instrumented
)

// Pause stops the process with SIGSTOP. Its connections stay open; no peer is notified.
func (n *Node) Pause() error { return n.Signal(stopSignal) }

// Resume lets a paused process go on.
func (n *Node) Resume() error { return n.Signal(continueSignal) }

// UseBinary makes path the program that the node's next process runs.
func (n *Node) UseBinary(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = path
}

// Supports returns nil if a fault can be done here, else why not: it tries. Links need a process of Isolate.
// A caller that leaves a fault out for that says so.
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

// isolatable returns nil if Isolate works here: a process that does nothing is started with it.
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
