package raftstore

import (
	"context"
	"net"
	"time"
)

// Faults injects what breaks in production. Its functions are called from many
// goroutines, and must be safe for that; nil ones do nothing.
type Faults struct {
	// Write is called before each write to disk; it may delay, block until the
	// disk is to answer again, or return the error that the disk is to give.
	Write func() error
	// Cut says that nothing passes between this node and the address, in either
	// direction. Connections that exist are cut as well when they are next used.
	Cut func(addr string) bool
	// Dial takes the place of the network, as Config.Listener does on the other side.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Delay is waited for before each write to a connection.
	Delay func(addr string) time.Duration
}
