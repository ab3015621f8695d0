package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a descriptor of the new process: unlike its number it never means another one.
type process int

// Start runs a program with this process's standard files, the sockets of listeners (as hello names
// them) and env. The new process is a sibling of this one, not a child: so the service manager, which
// is the parent of both, learns at once when it ends.
func Start(ctx context.Context, program string, args, env []string, h Hello, listeners []net.Listener) (*Successor, error) {
	if os.Getpid() == 1 {
		return nil, errors.New("this router is process 1 of its container, which ends with it: replace the container")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	open := []int{pair[1]} // for the new process only
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}()
	file := os.NewFile(uintptr(pair[0]), "successor")
	c, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	s := &Successor{conn: newConn(c), process: -1}
	for _, ln := range listeners {
		fd, err := duplicate(ln)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("socket at %s: %w", ln.Addr(), err), s.Close())
		}
		open = append(open, fd)
	}
	files := []uintptr{0, 1, 2}
	for _, fd := range open {
		files = append(files, uintptr(fd))
	}
	pidfd := -1
	s.PID, err = syscall.ForkExec(program, args, &syscall.ProcAttr{
		Env: environment(env), Files: files,
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_PARENT, PidFD: &pidfd},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", program, err), s.Close())
	}
	s.process = process(pidfd)
	h.Version = Version
	if err := s.send(ctx, message{Step: hello, Hello: &h}); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// environment drops what is for one process only, and adds where the connection is.
func environment(env []string) []string {
	next := []string{variable + "=3"}
	for _, v := range env {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", variable:
		default:
			next = append(next, v)
		}
	}
	return next
}

// duplicate does not use File, after which os may make the socket blocking, for this process too.
func duplicate(ln net.Listener) (fd int, err error) {
	s, ok := ln.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a %T has no descriptor", ln)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failure error
	if err := raw.Control(func(of uintptr) { fd, failure = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	return fd, failure
}

func (p process) kill(within time.Duration) error {
	if p < 0 {
		return nil
	}
	defer func() { _ = unix.Close(int(p)) }()
	if err := unix.PidfdSendSignal(int(p), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill the new process: %w", err)
	}
	for end := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}, int(max(0, time.Until(end)).Milliseconds()))
		switch {
		case n > 0:
			return nil
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the new process: %w", err)
		default:
			return errors.New("the new process does not end")
		}
	}
}
