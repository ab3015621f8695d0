package notify

import (
	"fmt"
	"net"
	"os"
)

// firstPassed is the first passed descriptor (sd_listen_fds(3)).
const firstPassed = 3

// Listener returns the socket that the service manager passed (LISTEN_FDS), or nil. The manager
// keeps it open across restarts. Call it once, before opening files; the caller closes it.
func Listener(getenv func(string) string) (net.Listener, error) {
	n := getenv("LISTEN_FDS")
	if n == "" || getenv("LISTEN_PID") == "" || !forThisProcess(getenv("LISTEN_PID")) {
		return nil, nil
	}
	if n != "1" {
		return nil, fmt.Errorf("LISTEN_FDS %q: pass one socket, that of the data port: write one ListenStream in the socket unit", n)
	}
	file := os.NewFile(firstPassed, "LISTEN_FDS")
	defer file.Close() // the listener holds a copy that children do not inherit
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("LISTEN_FDS: descriptor %d is no socket that listens: %w", firstPassed, err)
	}
	if _, ok := ln.(*net.TCPListener); !ok {
		ln.Close()
		return nil, fmt.Errorf("LISTEN_FDS: the socket at %s is not TCP: write a port, or an address and a port, as ListenStream", ln.Addr())
	}
	return ln, nil
}
