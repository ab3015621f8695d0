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
	s.in.try, s.out.try = s.in.read, s.out.write
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
