package raftstore

import "time"

// Faults injects what breaks in production. Its functions are called from many
// goroutines, and must be safe for that; nil ones do nothing.
type Faults struct {
	// Write is called before each write to disk; it may delay, block until the
	// disk is to answer again, or return the error that the disk is to give.
	Write func() error
	// Cut says that nothing passes between this node and the address, in either
	// direction. Connections that exist are cut as well when they are next used.
	Cut func(addr string) bool
	// Delay is waited for before each write to a connection.
	Delay func(addr string) time.Duration
}
