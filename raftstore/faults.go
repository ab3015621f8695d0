package raftstore

import "time"

// Faults injects failures for tests. Its functions must be safe for concurrent use; each may be
// nil.
type Faults struct {
	// Write runs before each disk write and may block it or return its error.
	Write func() error
	// Cut says that nothing passes to or from addr, also on open connections.
	Cut func(addr string) bool
	// Delay precedes each write to a connection.
	Delay func(addr string) time.Duration
}
