package proxy

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probe asks the kernel about one socket without reading from it and without waiting. One goroutine at a time.
//
// POLLRDHUP is the peer's FIN, even behind bytes that nobody has read yet (a pipelined request, a TLS close_notify),
// which a peeking read cannot see; POLLHUP and POLLERR are its RST.
type probe struct {
	conn  syscall.RawConn
	fds   [1]unix.PollFd
	err   error
	ask   func(fd uintptr) // made once: closures per call would be garbage
	byte  [1]byte
	empty bool
	peek  func(fd uintptr)
}

// newProbe returns nil if c is not a socket.
func newProbe(c net.Conn) *probe {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	p := &probe{conn: rc}
	p.ask = func(fd uintptr) {
		p.fds[0].Fd = int32(fd)
		_, p.err = unix.Poll(p.fds[:], 0)
	}
	p.peek = func(fd uintptr) {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&p.byte)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		p.empty = errno == syscall.EAGAIN
	}
	return p
}

// gone reports whether the peer has closed the connection or its sending half. A socket that is closed on this side, or
// that the kernel will not tell of (EINTR), is not gone.
func (p *probe) gone() bool {
	p.fds[0].Events, p.fds[0].Revents, p.err = unix.POLLRDHUP, 0, nil
	if err := p.conn.Control(p.ask); err != nil || p.err != nil {
		return false
	}
	return p.fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// quiet reports whether the connection is open and has nothing to read: fit to carry another request. A peek can say so,
// since here unread bytes are as bad as a FIN, and costs less than a poll.
func (p *probe) quiet() bool {
	p.empty = false
	return p.conn.Control(p.peek) == nil && p.empty
}
