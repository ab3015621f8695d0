//go:build !linux

package proxy

import "net"

// departures does nothing: a failing write shows that a client left.
type departures struct{}

func (*departures) open() error { return nil }

func (*departures) close() {}

func (*departures) add(*clientConn) error { return nil }

func (*departures) remove(*clientConn) {}

// probe does nothing: a failing request shows that a connection is stale.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }

func (*probe) quiet() bool { return true }
