//go:build !linux

package proxy

import "net"

// A failing write shows that a client left.
type departures struct{}

func (*departures) open(*Proxy) error     { return nil }
func (*departures) close()                {}
func (*departures) add(*clientConn) error { return nil }

// A failing request shows that a connection is stale.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }
func (*probe) quiet() bool     { return true }
