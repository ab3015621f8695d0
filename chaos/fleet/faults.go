package fleet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"grapevine/chaos/disk"
)

// What Supports can be asked for: the faults that not every machine can do.
const (
	FaultLinks   = "links"   // SetLink, ResetLink, Partition in a switched fleet
	FaultDisks   = "disks"   // FillDisk, HangDisk, SlowDisk: Config.Disks
	FaultClock   = "clock"   // StepClock; ask Steppable
	FaultHAProxy = "haproxy" // Config.HAProxy

	FaultCertificates = "certificates" // ExpireCertificate: Config.Certificates
)

// Pause stops the process where it stands, with SIGSTOP. Its connections stay, and nobody is told.
func (n *Node) Pause() error { return n.Signal(stopSignal) }

// Resume lets a paused process go on.
func (n *Node) Resume() error { return n.Signal(continueSignal) }

// UseBinary makes path the program that the node's next process runs.
func (n *Node) UseBinary(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = path
}

// FillDisk leaves no room in the node's file system: whatever needs more fails with ENOSPC until HealDisk.
func (n *Node) FillDisk() error { return n.onDisk((*disk.Disk).Fill) }

// HangDisk lets nothing that is asked of the node's file system end until HealDisk, as a disk that is gone from its bus.
func (n *Node) HangDisk() error { return n.onDisk((*disk.Disk).Hang) }

// SlowDisk makes every write and every sync of the node's file system take so much longer, until HealDisk.
func (n *Node) SlowDisk(by time.Duration) error {
	return n.onDisk(func(d *disk.Disk) { d.Slow(by) })
}

// HealDisk ends all that was done to the node's file system.
func (n *Node) HealDisk() error { return n.onDisk((*disk.Disk).Heal) }

func (n *Node) onDisk(f func(*disk.Disk)) error {
	if n.disk == nil {
		return fmt.Errorf("%s: has no file system of its own", n.name)
	}
	f(n.disk)
	return nil
}

// Supports returns nil if a fault can be done here, else why not: it tries. Links need a process of Isolate; so do disks, unless by root.
// Clocks depend on the router's program: Steppable checks those.
func Supports(fault string) error {
	switch fault {
	case FaultLinks:
		return errors.Join(linkable(), isolatable())
	case FaultDisks:
		return mountable()
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
	cmd := exec.Command("ip", "-Version")
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

// mountable returns nil if nodes can have file systems of their own: one is made. Who is not root can be so in a process of Isolate.
func mountable() (err error) {
	if err := disk.Available(); err != nil {
		return err
	}
	if os.Getuid() != 0 {
		return isolatable()
	}
	t, err := newThread(nil)
	if err != nil {
		return err
	}
	defer t.close()
	dir, err := os.MkdirTemp("", "grapevine-disk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	d, err := disk.Mount(dir, t.do)
	if err != nil {
		return err
	}
	return d.Close()
}
