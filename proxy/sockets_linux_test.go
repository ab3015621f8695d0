package proxy

import (
	"net"
	"testing"
)

func socketPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	c, err := ln.Accept()
	must(t, err)
	t.Cleanup(func() { peer.Close(); c.Close() })
	return c.(*net.TCPConn), peer.(*net.TCPConn)
}

func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		do    func(peer *net.TCPConn)
		quiet bool
	}{
		"open":             {func(*net.TCPConn) {}, true},
		"unread":           {func(p *net.TCPConn) { _, _ = p.Write([]byte("x")) }, false},
		"fin":              {func(p *net.TCPConn) { p.Close() }, false},
		"half-close":       {func(p *net.TCPConn) { _ = p.CloseWrite() }, false},
		"unread, then fin": {func(p *net.TCPConn) { _, _ = p.Write([]byte("x")); p.Close() }, false},
		"rst":              {func(p *net.TCPConn) { _ = p.SetLinger(0); p.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := socketPair(t)
			p := newProbe(near)
			tc.do(far)
			eventually(t, name, func() bool { return p.quiet() == tc.quiet })
			for range 3 { // asking changes nothing
				if p.quiet() != tc.quiet {
					t.Errorf("quiet %v", p.quiet())
				}
			}
			if near.Close(); p.quiet() {
				t.Error("a socket closed on this side can carry a request")
			}
		})
	}
}
