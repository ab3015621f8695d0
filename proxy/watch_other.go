//go:build !linux

package proxy

import "net"

// probe is not implemented here: other systems have no poll event for the peer's FIN behind unread bytes. A client that
// leaves is then noticed by the first write to it that fails, so a stream ends with its next chunk, and a request whose
// response is not streamed runs to its end; a stale backend connection is noticed by using it, and the request is sent
// again on a fresh one.
type probe struct{}

func newProbe(net.Conn) *probe { return nil }

func (*probe) gone() bool { return false }

func (*probe) quiet() bool { return true }
