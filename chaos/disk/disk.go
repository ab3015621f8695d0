// Package disk shows a directory through a file system that can be full, slow, and hang.
//
// The files stay where they are, and whoever does not look through the file system sees them as ever. It is served by this process
// (FUSE), so that nothing hangs any longer than the process lives, and only processes of one thread see it: nothing is mounted in
// the machine.
package disk

import (
	"sync"
	"sync/atomic"
	"time"
)

// Disk is the state of one file system. Safe for concurrent use.
type Disk struct {
	mu      sync.Mutex // of those who change it
	state   atomic.Pointer[state]
	hanging atomic.Int64

	mounted
}

// state is immutable but for its channels.
type state struct {
	full    bool
	hangs   bool
	slow    time.Duration
	changed chan struct{} // closed when another state is in force
	failed  chan struct{} // closed when what hangs is to fail
}

func (s state) fresh() *state {
	s.changed, s.failed = make(chan struct{}), make(chan struct{})
	return &s
}

// change puts another state in force. What waits looks at it again.
func (d *Disk) change(f func(s *state)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.state.Load()
	s := old.fresh()
	f(s)
	d.state.Store(s)
	close(old.changed)
}

// Fill leaves no room: what needs more than it has gets ENOSPC. Files can be read, removed, renamed, cut and written where they have been
// written before, as on a full ext4.
func (d *Disk) Fill() { d.change(func(s *state) { s.full = true }) }

// Hang lets nothing end, as a disk that is gone from its bus: neither reads nor writes, and signals do not interrupt them.
func (d *Disk) Hang() { d.change(func(s *state) { s.hangs = true }) }

// Slow makes every write, every sync and every change of a directory take so much longer.
func (d *Disk) Slow(by time.Duration) { d.change(func(s *state) { s.slow = by }) }

// Heal ends all of that. What hung goes on.
func (d *Disk) Heal() { d.change(func(s *state) { *s = *state{}.fresh() }) }

// Fail has what hangs at this moment fail with EIO; what comes next hangs again. A process that was killed ends only then.
func (d *Disk) Fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.state.Load()
	d.state.Store(old.fresh())
	close(old.failed)
}

// Hanging is how many requests hang now. The kernel answers much from its cache and does not ask.
func (d *Disk) Hanging() int { return int(d.hanging.Load()) }

// wait returns when a request may be served; false if it is to fail. A heavy one changes something or syncs.
func (d *Disk) wait(heavy bool) bool {
	for {
		s := d.state.Load()
		switch {
		case s.hangs:
			if !d.hang(s) {
				return false
			}
		case heavy && s.slow > 0:
			timer := time.NewTimer(s.slow)
			select {
			case <-timer.C:
				return true
			case <-s.changed:
				timer.Stop()
			case <-s.failed: // it does not hang
				<-timer.C
				return true
			}
		default:
			return true
		}
	}
}

// hang returns true when the disk's state has changed, false if what hangs is to fail.
func (d *Disk) hang(s *state) bool {
	d.hanging.Add(1)
	defer d.hanging.Add(-1)
	select {
	case <-s.changed:
		return true
	case <-s.failed:
		return false
	}
}
