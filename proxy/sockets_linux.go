package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// departures reports clients that leave. An epoll instance holds every client socket,
// edge-triggered, for EPOLLRDHUP only: it sees a RST, and a FIN behind unread bytes, which a
// peeking read would miss, but not data.
type departures struct {
	fd    int      // File.Fd would make it blocking
	file  *os.File // the runtime's poller waits for it without a thread
	ready syscall.RawConn
	ended chan struct{}
}

func (d *departures) open(p *Proxy) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch for departing clients: epoll_create1: %w", err)
	}
	err = unix.SetNonblock(fd, true) // os.NewFile polls only non-blocking files
	d.fd, d.file = fd, os.NewFile(uintptr(fd), "epoll")
	if err == nil {
		d.ready, err = d.file.SyscallConn()
	}
	if err != nil {
		d.file.Close()
		return fmt.Errorf("watch for departing clients: %w", err)
	}
	d.ended = make(chan struct{})
	go d.run(p)
	return nil
}

func (d *departures) close() {
	d.file.Close()
	<-d.ended
}

// Test connections without a socket are not watched.
func (d *departures) add(c *clientConn) error {
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) {
		event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(c.key)), Pad: int32(uint32(c.key >> 32))}
		failed = unix.EpollCtl(d.fd, unix.EPOLL_CTL_ADD, int(fd), &event)
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("watch a client connection: %w", err)
	}
	return nil
}

func (d *departures) run(p *Proxy) {
	defer close(d.ended)
	var events [128]unix.EpollEvent
	n := 0
	wait := func(fd uintptr) bool {
		var err error
		for {
			if n, err = unix.EpollWait(int(fd), events[:], 0); err != unix.EINTR {
				return n > 0
			}
		}
	}
	for d.ready.Read(wait) == nil {
		for _, event := range events[:n] {
			p.mu.Lock()
			c := p.conns[uint64(uint32(event.Fd))|uint64(uint32(event.Pad))<<32]
			p.mu.Unlock()
			if c != nil {
				c.depart()
			}
		}
	}
}

type probe struct {
	conn syscall.RawConn
	fds  [1]unix.PollFd
	err  error
	ask  func(fd uintptr) // made once: a closure per call would allocate
}

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

// quiet means open with nothing to read.
func (p *probe) quiet() bool {
	return p.conn.Control(p.ask) == nil && p.err == nil && p.fds[0].Revents == 0
}
