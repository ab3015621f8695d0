package events

import (
	"net"
	"syscall"
)

// lowWater lets so many bytes gather in a socket before it wakes its reader, or a deadline does. Without that, each message would wake
// the process although no one waits for it.
func lowWater(c net.Conn, bytes int) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes) })
}
