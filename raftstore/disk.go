package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

var (
	errDiskHung   = errors.New("the disk did not answer in time")
	errDiskClosed = errors.New("the data file is closed")
)

// disk is the data file with one writing goroutine. A failed or late write fails it for good: see
// DESIGN.md.
type disk struct {
	db       *bbolt.DB
	deadline time.Duration
	before   func() error // runs before each write; may be nil

	ops    chan diskOp
	closed chan struct{}
	failed chan struct{} // closed after cause is set
	gone   chan struct{} // closed with the file

	counts *writeCounts
	ended  atomic.Int64 // of the last write, unix ns

	shut  sync.Once
	mu    sync.Mutex
	cause error
}

// writeCounts spans all disks of a store.
type writeCounts struct {
	mu sync.Mutex
	WriteStats
}

type diskOp struct {
	write    func(*bbolt.Tx) error
	deadline time.Duration
	result   chan error
}

// openDisk creates a missing file. A disk on a read-only file system has failed but can be read.
func openDisk(dir string, deadline time.Duration, before func() error, counts *writeCounts) (*disk, error) {
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
		db: db, deadline: deadline, before: before, counts: counts,
		ops: make(chan diskOp), closed: make(chan struct{}),
		failed: make(chan struct{}), gone: make(chan struct{}),
	}
	d.ended.Store(time.Now().UnixNano())
	go d.run()
	if readOnly != nil {
		d.fail(readOnly)
	}
	return d, nil
}

// roomBytes, about a hundred changes, must be free before raft uses the file.
const roomBytes = 256 << 10

// tryRoom uses a temporary file, because the data file would keep the space.
func (d *disk) tryRoom() error {
	return d.write(0, func(*bbolt.Tx) error {
		path := d.db.Path() + ".room"
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = f.Write(make([]byte, roomBytes))
		if err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close(), os.Remove(path))
	})
}

// write returns when the transaction is on disk. Each 4 MiB of size adds one deadline.
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

func (d *disk) read(f func(*bbolt.Tx) error) error { return d.db.View(f) }

// put and get use sealed values.
func (d *disk) put(bucket, key, value []byte) error {
	return d.write(0, func(tx *bbolt.Tx) error { return seal(tx.Bucket(bucket), key, value) })
}

func (d *disk) get(bucket, key []byte) (value []byte, err error) {
	err = d.read(func(tx *bbolt.Tx) (err error) {
		value, err = unseal(tx.Bucket(bucket), key)
		return err
	})
	return value, err
}

func (d *disk) run() {
	defer close(d.gone)
	defer d.db.Close()
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
	var err error
	if d.before != nil {
		err = d.before()
	}
	if err == nil {
		err = d.db.Update(op.write)
	}
	took := time.Since(start)
	d.ended.Store(time.Now().UnixNano())
	d.counts.mu.Lock()
	d.counts.Count++
	d.counts.Last, d.counts.Max = took, max(d.counts.Max, took)
	d.counts.mu.Unlock()
	if err != nil {
		d.fail(err)
		return err
	}
	return d.failure()
}

// fail keeps the first cause, unless a later one rules out reopening.
func (d *disk) fail(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.mu.Lock()
	d.counts.Failed++
	d.counts.mu.Unlock()
	switch {
	case d.cause == nil:
		d.cause = cause
		close(d.failed)
	case mayReopen(d.cause) && !mayReopen(cause):
		d.cause = cause
	}
}

// failure is nil for a nil disk: a node in memory has none.
func (d *disk) failure() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

// close reports whether the file closed in time; otherwise it closes when the disk answers.
func (d *disk) close(wait time.Duration) bool {
	d.shut.Do(func() { close(d.closed) })
	return within(wait, func() { <-d.gone })
}

func (d *disk) idle() time.Duration { return time.Since(time.Unix(0, d.ended.Load())) }

func (c *writeCounts) stats() WriteStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.WriteStats
}

// mayReopen trusts a file after a hang that ended or a refused write, not after a failed fsync or
// an unknown error.
func mayReopen(cause error) bool {
	if errors.Is(cause, errDiskHung) {
		return true
	}
	path, ok := errors.AsType[*fs.PathError](cause)
	return ok && (path.Op == "write" || path.Op == "truncate" || path.Op == "open")
}

func (d *disk) over() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}
