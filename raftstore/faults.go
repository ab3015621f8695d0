package raftstore

import "time"

// Faults injects failures for tests. Its functions must be safe for concurrent use; nil ones do
// nothing.
type Faults struct {
	// Write runs before each disk write. It may delay or block the write, or return its error.
	Write func() error
	// Cut says that nothing passes between this node and addr in either direction. It also cuts
	// open connections at their next use.
	Cut func(addr string) bool
	// Delay is the wait before each write to a connection.
	Delay func(addr string) time.Duration
}
