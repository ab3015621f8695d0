//go:build !linux

package proxy

import "net"

// departures is not implemented here: other systems do not report the peer's FIN behind unread
// bytes. A client that leaves is then noticed by the first write to it that fails: a stream ends
// with its next chunk, and a request whose response is not streamed runs to its end.
type departures struct{}

func (*departures) open() error { return nil }

func (*departures) close() {}

func (*departures) add(*clientConn) error { return nil }

func (*departures) remove(*clientConn) {}

// probe is not implemented here: a backend connection that went stale in the pool is noticed by
// using it, and the request is sent again on a new one.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }

func (*probe) quiet() bool { return true }
