package fleet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"grapevine.example/chaos/netswitch"
)

const isolatedEnv = "GRAPEVINE_CHAOS_ISOLATED_FROM"

func ownNetwork() (string, error) { return os.Readlink("/proc/self/ns/net") }

// Isolate prepares cmd to run in an empty network namespace, as root of a new user namespace if the
// caller is not root. The kernel ends the process with the thread that starts it, so the caller
// stays locked to its thread until it has waited for the process.
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

// Isolated reports whether Isolate started this process.
func Isolated() bool {
	from := os.Getenv(isolatedEnv)
	here, err := ownNetwork()
	return err == nil && from != "" && from != here
}

func raiseLoopback() error {
	if !Isolated() {
		return nil
	}
	return netswitch.RaiseLoopback()
}

var errNotIsolated = errors.New("fleet: this process was not started by Isolate")

// tie makes the kernel kill the process with the thread that starts it. Its process group leaves
// Ctrl-C to the harness.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func onMainThread() bool { return unix.Gettid() == unix.Getpid() }
