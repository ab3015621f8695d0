//go:build !linux

package proxy

import "net"

// departures is a stub: other systems do not report a FIN behind unread bytes. A departure is
// noticed when a write fails.
type departures struct{}

func (*departures) open() error { return nil }

func (*departures) close() {}

func (*departures) add(*clientConn) error { return nil }

func (*departures) remove(*clientConn) {}

// probe is a stub: a stale connection is noticed when a request fails on it.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }

func (*probe) quiet() bool { return true }
