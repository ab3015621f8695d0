package proxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// probe asks the kernel about a connection without reading from it. Not safe for concurrent use.
type probe struct {
	conn syscall.RawConn
	fds  [1]unix.PollFd
	err  error
	ask  func(fd uintptr) // made once: a closure per call would allocate
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
		p.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		_, p.err = unix.Poll(p.fds[:], 0)
	}
	return p
}

// quiet reports whether the connection is open with nothing to read.
func (p *probe) quiet() bool {
	return p.conn.Control(p.ask) == nil && p.err == nil && p.fds[0].Revents == 0
}
