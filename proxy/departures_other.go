//go:build !linux

package proxy

import "net"

// departures is a stub: other systems do not report a FIN behind unread bytes. The proxy notices a
// departure when a write fails: a stream ends with its next chunk, other requests run to their end.
type departures struct{}

func (*departures) open() error { return nil }

func (*departures) close() {}

func (*departures) add(*clientConn) error { return nil }

func (*departures) remove(*clientConn) {}

// probe is a stub: a stale pooled connection is noticed when a request fails on it, and the request
// is sent again on a new one.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }

func (*probe) quiet() bool { return true }
