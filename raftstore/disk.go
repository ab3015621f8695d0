package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

var (
	// errDiskHung is a write that did not end within its deadline.
	errDiskHung = errors.New("the disk did not answer in time")
	// errDiskClosed is a write after close.
	errDiskClosed = errors.New("the data file is closed")
)

// disk is the data file behind a deadline and a latch.
//
// One goroutine writes. A write that fails or does not end in time fails the
// disk: from then on every write is refused, whatever becomes of the one that
// hangs. Raft itself would go on using a store that had failed. After a failed
// fsync the system may report success for data that it has dropped; and a leader
// whose write hangs goes on sending heartbeats, so that nobody replaces it for
// as long as the disk hangs.
type disk struct {
	db       *bbolt.DB
	deadline time.Duration
	faults   *Faults

	ops    chan diskOp
	done   chan struct{} // closed when the writing goroutine has ended
	closed chan struct{}
	failed chan struct{} // closed after cause is set
	gone   chan struct{} // closed when the file is closed

	counts *writeCounts
	ended  atomic.Int64 // when the last write ended, unix ns

	mu    sync.Mutex
	cause error // see fail
	shut  bool
}

// writeCounts count the writes to all data files that a store has opened one after the other.
type writeCounts struct {
	writes, failures atomic.Uint64
	last, max        atomic.Int64 // duration of writes, ns
}

type diskOp struct {
	write    func(*bbolt.Tx) error
	deadline time.Duration
	result   chan error // has room for one
}

// openDisk opens the data file in dir, and makes it if there is none. It waits for half a second if
// another process has it open. It does not write to a file that is there. A file on a read-only file
// system is opened for reading, and the disk has failed from the start.
func openDisk(dir string, deadline time.Duration, faults *Faults, counts *writeCounts) (*disk, error) {
	path := filepath.Join(dir, dataFile)
	if err := ensureData(dir, path); err != nil {
		return nil, err
	}
	if err := checkData(path); err != nil {
		return nil, err
	}
	db, err := openBolt(path, false)
	var readOnly error
	if errors.Is(err, syscall.EROFS) {
		readOnly = err
		db, err = openBolt(path, true)
	}
	if err != nil {
		return nil, err
	}
	d := &disk{
		db: db, deadline: deadline, faults: faults, counts: counts,
		ops: make(chan diskOp), done: make(chan struct{}), closed: make(chan struct{}),
		failed: make(chan struct{}), gone: make(chan struct{}),
	}
	d.ended.Store(time.Now().UnixNano())
	go d.run()
	if readOnly != nil {
		d.fail(readOnly)
	}
	return d, nil
}

// roomBytes is what has to fit into the data file before raft uses it: some hundred changes. Without
// that much a file that can still take a few bytes would be taken into use and fail, again and again.
const roomBytes = 256 << 10

// tryRoom writes roomBytes to the data file and removes them again.
func (d *disk) tryRoom() error {
	room := make([]byte, roomBytes)
	err := d.write(0, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyRoom, room) })
	if err != nil {
		return err
	}
	return d.write(0, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Delete(keyRoom) })
}

// write runs a transaction and returns when it is on the disk. size is about how
// many bytes it writes: each 4 MiB adds once the deadline.
func (d *disk) write(size int, f func(*bbolt.Tx) error) error {
	op := diskOp{write: f, deadline: d.deadline * time.Duration(1+size>>22), result: make(chan error, 1)}
	select {
	case d.ops <- op:
	case <-d.failed:
		return d.failure()
	case <-d.closed:
		return errDiskClosed
	}
	select {
	case err := <-op.result:
		return err
	case <-d.failed:
		return d.failure()
	}
}

// read runs a read-only transaction.
func (d *disk) read(f func(*bbolt.Tx) error) error { return d.db.View(f) }

func (d *disk) run() {
	defer close(d.done)
	for {
		select {
		case op := <-d.ops:
			op.result <- d.execute(op)
		case <-d.closed:
			return
		}
	}
}

func (d *disk) execute(op diskOp) error {
	if err := d.failure(); err != nil {
		return err
	}
	start := time.Now()
	alarm := time.AfterFunc(op.deadline, func() {
		d.fail(fmt.Errorf("%w (%v)", errDiskHung, op.deadline))
	})
	defer alarm.Stop()
	err := d.transact(op.write)
	took := time.Since(start)
	d.counts.writes.Add(1)
	d.counts.last.Store(int64(took))
	d.ended.Store(time.Now().UnixNano())
	d.counts.max.Store(max(d.counts.max.Load(), int64(took)))
	if err != nil {
		d.fail(err)
		return err
	}
	return d.failure()
}

func (d *disk) transact(f func(*bbolt.Tx) error) error {
	if d.faults != nil && d.faults.Write != nil {
		if err := d.faults.Write(); err != nil {
			return err
		}
	}
	return d.db.Update(f)
}

// fail latches the disk. The first cause counts, unless a later one is worse: a
// write that hung may yet fail.
func (d *disk) fail(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.failures.Add(1)
	switch {
	case d.cause == nil:
		d.cause = cause
		close(d.failed)
	case mayReopen(d.cause) && !mayReopen(cause):
		d.cause = cause
	}
}

func (d *disk) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

// close ends the writing goroutine and closes the file. It reports whether both
// were done within the time; if not, they are done when the disk answers.
func (d *disk) close(wait time.Duration) bool {
	d.mu.Lock()
	first := !d.shut
	d.shut = true
	d.mu.Unlock()
	if first {
		close(d.closed)
		go func() {
			defer close(d.gone)
			<-d.done
			d.db.Close()
		}()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-d.gone:
		return true
	case <-timer.C:
		return false
	}
}

// idle is how long nothing has been written.
func (d *disk) idle() time.Duration { return time.Since(time.Unix(0, d.ended.Load())) }

func (c *writeCounts) stats() WriteStats {
	return WriteStats{
		Count: c.writes.Load(), Failed: c.failures.Load(),
		Last: time.Duration(c.last.Load()), Max: time.Duration(c.max.Load()),
	}
}

// mayReopen says whether data written before the failure can be trusted to be
// what the file says: after a hang that ended, and after a write that the system
// refused (a full disk, a read-only file system), but not after a failed fsync or anything unknown.
// Then only a new process after a look at the disk will do.
func mayReopen(cause error) bool {
	if errors.Is(cause, errDiskHung) {
		return true
	}
	path, ok := errors.AsType[*fs.PathError](cause)
	return ok && (path.Op == "write" || path.Op == "truncate" || path.Op == "open")
}

// over says whether a closed disk is let go of: nothing hangs in it any more.
func (d *disk) over() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}
