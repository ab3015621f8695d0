package fleet

import (
	"fmt"
	"os"
	"time"

	"grapevine/chaos/disk"
	"grapevine/chaos/netswitch"
)

// What Supports can be asked for: the faults that not every machine can do.
const (
	FaultLinks   = "links"   // SetLink, ResetLink, Partition in a switched fleet
	FaultDisks   = "disks"   // FillDisk, HangDisk, SlowDisk: Config.Disks
	FaultClock   = "clock"   // StepClock
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

// Supports returns nil if a fault can be done here, else why not. Whoever leaves out a fault for that says so. Of clocks it says whether this
// very program's can be stepped; Steppable is for others.
func Supports(fault string) error {
	switch fault {
	case FaultLinks:
		return netswitch.Available()
	case FaultDisks:
		return disk.Available()
	case FaultClock:
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return Steppable(self)
	case FaultCertificates:
		return nil
	case FaultHAProxy:
		_, err := findHAProxy()
		return err
	}
	return fmt.Errorf("fleet: %s: no such fault", fault)
}
