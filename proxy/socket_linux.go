package proxy

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket is a TCP connection whose reads and writes do not tell the scheduler that they enter the kernel. They need not:
// the descriptor does not block. The standard library's calls do, and on a busy machine a thread that is displaced inside
// one for 20 us has its processor given to another thread, which costs two context switches and a futex.
//
// Waiting is the runtime poller's as ever, and so are deadlines and closing. One goroutine may read and one may write at
// a time.
type socket struct {
	*net.TCPConn
	conn syscall.RawConn
	in   transfer
	out  transfer

	// Of ask; the function is made once.
	attempt func(fd uintptr) bool
	sent    func()
	asked   bool
}

// transfer is the state of one direction. The function is made once: a closure per call would be garbage.
type transfer struct {
	rest []byte
	n    int
	err  error
	try  func(fd uintptr) bool
}

// newSocket returns c as a socket, or c itself if it is no TCP connection.
func newSocket(c net.Conn) net.Conn {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	rc, err := tc.SyscallConn()
	if err != nil {
		return c
	}
	s := &socket{TCPConn: tc, conn: rc}
	s.in.try, s.out.try, s.attempt = s.in.read, s.out.write, s.askOnce
	return s
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.in.rest, s.in.n, s.in.err = p, 0, nil
	err := s.conn.Read(s.in.try)
	s.in.rest = nil
	if err == nil {
		err = s.in.err
	}
	return s.in.n, err
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	s.out.rest, s.out.n, s.out.err = p, 0, nil
	err := s.conn.Write(s.out.try)
	s.out.rest = nil
	if err == nil {
		err = s.out.err
	}
	return s.out.n, err
}

// ask writes p, calls sent, and returns when there is an answer to read, or no more to wait for: its error is of the writing, and the next
// Read tells of the rest. A Write and a Read would first read in vain, as no answer is there yet: what makes the poller forget that the
// socket was ready must come before the write, or an answer could slip in between.
func (s *socket) ask(p []byte, sent func()) error {
	s.out.rest, s.out.n, s.out.err = p, 0, nil
	s.sent, s.asked = sent, false
	err := s.conn.Read(s.attempt)
	if !s.asked {
		if err == nil && s.out.err == nil { // the kernel did not take all of it
			err = s.conn.Write(s.out.try)
		}
		if err == nil {
			err = s.out.err
		}
		if err == nil {
			sent()
		}
	} else {
		err = nil
	}
	s.out.rest, s.sent = nil, nil
	return err
}

// askOnce reports whether the wait is over.
func (s *socket) askOnce(fd uintptr) bool {
	if s.asked || !s.out.write(fd) || s.out.err != nil {
		return true
	}
	s.asked = true
	s.sent()
	return false
}

// ReadFrom implements io.ReaderFrom, so that the embedded one, which goes past Write, is not used.
func (s *socket) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{s}, r)
}

// read reports whether the wait is over.
func (t *transfer) read(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.rest))), uintptr(len(t.rest)))
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			t.err = os.NewSyscallError("read", errno)
		case n == 0:
			t.err = io.EOF
		default:
			t.n = int(n)
		}
		return true
	}
}

// write reports whether the wait is over: all has been written, or nothing more can be.
func (t *transfer) write(fd uintptr) bool {
	for len(t.rest) > 0 {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.rest))), uintptr(len(t.rest)))
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			t.err = os.NewSyscallError("write", errno)
			return true
		}
		t.n += int(n)
		t.rest = t.rest[n:]
	}
	return true
}
