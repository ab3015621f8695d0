//go:build linux

package main

import (
	"time"

	"grapevine.example/chaos/programs"
)

// moment holds the CPU time spent until now: by a contender and the backend, by this program with
// all it started, and by the whole machine.
type moment struct {
	at                             time.Time
	contender, backend, ours, busy time.Duration
}

// readMoment takes process ids; 0 stands for no process.
func readMoment(contender, backend int) (m moment, err error) {
	m.at = time.Now()
	m.contender, _ = programs.Usage(contender)
	m.backend, _ = programs.Usage(backend)
	m.busy, m.ours, err = programs.Busy()
	return m, err
}
