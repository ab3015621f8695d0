package fleet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"grapevine/chaos/netswitch"
)

// isolatedEnv tells a process that it was started by Isolate, and in which network its parent is.
const isolatedEnv = "GRAPEVINE_CHAOS_ISOLATED_FROM"

// ownNetwork names the network namespace of this process.
func ownNetwork() (string, error) { return os.Readlink("/proc/self/ns/net") }

// Isolate prepares cmd to run in an empty network namespace of its own, as root of its own where the caller is not root. Nothing that it
// does to its network touches this machine's. It is an error where the kernel, or its administrator, does not allow that; the error of
// starting cmd can be the same. The kernel ends the process with the thread that starts it: the caller
// locks its thread until it has waited for the process, or a fleet in this process may take that thread with it when it is closed.
func Isolate(cmd *exec.Cmd) error {
	here, err := ownNetwork()
	if err != nil {
		return fmt.Errorf("fleet: no network namespaces: %w", err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, isolatedEnv+"="+here)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return nil
}

// Isolated says whether this process was started by Isolate and is in a network of its own.
func Isolated() bool {
	from := os.Getenv(isolatedEnv)
	here, err := ownNetwork()
	return err == nil && from != "" && from != here
}

// raiseLoopback makes 127.0.0.0/8 work in a process that Isolate started, whose network is empty; elsewhere it does.
func raiseLoopback() error {
	if !Isolated() {
		return nil
	}
	return netswitch.RaiseLoopback()
}

// subnet holds the addresses: the harness itself is the first, member m is 10 + m.
var subnet = [3]byte{10, 77, 0}

func hostOf(last int) string {
	return netip.AddrFrom4([4]byte{subnet[0], subnet[1], subnet[2], byte(last)}).String()
}

func memberHost(m int) string { return hostOf(10 + m) }

// errNotIsolated protects the machine: without a namespace of its own this would configure everybody's network.
var errNotIsolated = errors.New("fleet: this process was not started by Isolate")
