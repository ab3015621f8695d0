package proxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// probe asks the kernel about one socket without reading from it and without waiting. One goroutine at a time.
//
// POLLRDHUP is the peer's FIN, even behind bytes that nobody has read yet (a pipelined request, a TLS close_notify),
// which a peeking read cannot see; POLLHUP and POLLERR are its RST.
type probe struct {
	conn syscall.RawConn
	fds  [1]unix.PollFd
	err  error
	ask  func(fd uintptr)
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
	return p
}

func (p *probe) poll(events int16) (int16, bool) {
	p.fds[0].Events, p.fds[0].Revents, p.err = events, 0, nil
	if err := p.conn.Control(p.ask); err != nil || p.err != nil {
		return 0, false
	}
	return p.fds[0].Revents, true
}

// gone reports whether the peer has closed the connection or its sending half. A socket that is closed on this side, or
// that the kernel will not tell of (EINTR), is not gone.
func (p *probe) gone() bool {
	got, ok := p.poll(unix.POLLRDHUP)
	return ok && got&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// quiet reports whether the connection is open and has nothing to read: fit to carry another request.
func (p *probe) quiet() bool {
	got, ok := p.poll(unix.POLLIN | unix.POLLRDHUP)
	return ok && got == 0
}
