package events

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLowWater(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{gathered, 1} {
		lowWater(c, want)
		var got int
		var failed error
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT) })
		if err != nil || failed != nil || got != want {
			t.Errorf("the socket wakes its reader at %d bytes, want %d (%v, %v)", got, want, err, failed)
		}
	}
}
