package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

const (
	// rpcTimeout exceeds a follower's write deadline, so that a slow disk does not look like a lost
	// node.
	rpcTimeout = 2 * time.Second
	endWait    = 2 * time.Second
	// cachedLogs entries stay in memory for replication.
	cachedLogs = 512
)

// life is one raft, until its disk fails or the store stops.
type life struct {
	disk  *disk // nil in memory
	fsm   *fsm
	link  *link // nil without network
	raft  *raft.Raft
	close func()
	cut   chan struct{} // closed when raft can send nothing more

	pending sync.WaitGroup
	mu      sync.Mutex
	ending  bool
	applied atomic.Uint64 // on the disk
}

func (s *Store) begin(d *disk) (*life, error) {
	l := &life{disk: d, cut: make(chan struct{}), fsm: newFSM(s.publish, s.halt)}
	if d != nil {
		index, err := noted(d)
		if err != nil {
			return nil, err
		}
		l.applied.Store(index)
	}
	trans := s.transport(l)
	var (
		logs   raft.LogStore
		stable raft.StableStore
		snaps  raft.SnapshotStore
	)
	if d == nil {
		memory := raft.NewInmemStore()
		logs, stable, snaps = memory, memory, raft.NewInmemSnapshotStore()
	} else {
		store := &logStore{disk: d, cut: l.cut}
		cache, err := raft.NewLogCache(cachedLogs, store)
		if err != nil {
			return nil, err
		}
		logs, stable, snaps = cache, store, snapshotStore{d}
		// After a disk failure, raft must not reach other nodes.
		go func() {
			select {
			case <-d.failed:
			case <-d.closed:
			}
			l.close()
			close(l.cut)
		}()
	}
	r, err := raft.NewRaft(s.raftConfig(), l.fsm, logs, stable, snaps, trans)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("start raft: %w", err)
	}
	l.raft = r
	return l, nil
}

func (s *Store) raftConfig() *raft.Config {
	t := s.cfg.Timers
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(s.id)
	conf.HeartbeatTimeout = t.Heartbeat
	conf.ElectionTimeout = t.Heartbeat
	conf.LeaderLeaseTimeout = t.Lease
	conf.CommitTimeout = t.Commit
	conf.SnapshotInterval = t.SnapshotEvery
	conf.SnapshotThreshold = t.SnapshotAfter
	conf.TrailingLogs = t.KeepLog
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = newRaftLog(s.log)
	return conf
}

func (s *Store) transport(l *life) raft.Transport {
	if s.port == nil {
		_, t := raft.NewInmemTransport(raft.ServerAddress(s.addr))
		l.close = func() { t.Close() }
		return t
	}
	l.link = newLink(s.port, s.group)
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: named{self: s.id, addr: s.addr, find: l.find},
		Logger:                newRaftLog(s.log),
		Stream:                l.link,
		MaxPool:               2,
		Timeout:               rpcTimeout,
		// No pipelining: in raft v1.8.0 a pipeline whose follower refuses an entry while another is
		// handed over blocks forever, and so do replication and shutdown.
		MaxRPCsInFlight: 1,
	})
	l.close = func() { t.Close() }
	return t
}

func (l *life) find(id raft.ServerID) (raft.ServerAddress, bool) {
	for _, server := range l.servers() {
		if server.ID == id {
			return server.Address, true
		}
	}
	return "", false
}

func (l *life) servers() []raft.Server {
	if l == nil || l.raft == nil {
		return nil
	}
	return l.raft.GetConfiguration().Configuration().Servers
}

// enter registers a call that waits for raft; false if raft is ending.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return false
	}
	l.pending.Add(1)
	return true
}

// end reports whether raft ended in time. Pending calls come first, because raft may never answer
// them afterwards.
func (l *life) end() bool {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	within(endWait, l.pending.Wait)
	l.close()
	over := within(endWait, func() { _ = l.raft.Shutdown().Error() })
	if l.disk != nil && !l.disk.close(endWait) {
		over = false
	}
	return over
}

// within reports whether f ended in time; f continues otherwise.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (l *life) failure() error {
	if l.disk == nil {
		return nil
	}
	return l.disk.failure()
}

// note stores the commit index, so that a node without a leader starts with recent state. raft's
// RestoreCommittedLogs loses configuration changes and blocks forever on many entries.
//
// An idle leader stores it again, to detect a hung disk before a caller waits.
func (l *life) note(after time.Duration) error {
	if l.disk == nil {
		return nil
	}
	// A new raft may lag behind its predecessor.
	applied := max(l.raft.AppliedIndex(), l.applied.Load())
	probe := l.raft.State() == raft.Leader && l.disk.idle() >= after
	if applied <= l.applied.Load() && !probe {
		return nil
	}
	err := l.disk.write(0, func(tx *bbolt.Tx) error {
		return seal(tx.Bucket(bucketMeta), keyApplied, logKey(applied))
	})
	if err == nil {
		l.applied.Store(applied)
	}
	return err
}

// replay builds the state that the disk proves: snapshot and log up to the noted index.
func replay(d *disk) (*State, error) {
	logs := &logStore{disk: d}
	if err := logs.check(); err != nil {
		return nil, err
	}
	m := newMachine()
	next := uint64(1)
	meta, data, err := snapshotStore{d}.load(true)
	if err != nil {
		return nil, err
	}
	if meta != nil {
		m, err = restoreMachine(data)
		if errors.Is(err, errUnknownSnapshot) {
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("the snapshot is damaged: %w", err)
		}
		next = meta.Index + 1
	}
	applied, err := noted(d)
	if err != nil {
		return nil, err
	}
	for ; next <= applied; next++ {
		var l raft.Log
		err := logs.GetLog(next, &l)
		if errors.Is(err, raft.ErrLogNotFound) {
			return nil, fmt.Errorf("the log is damaged: entry %d is missing, and %d is noted as committed", next, applied)
		}
		if err != nil {
			return nil, err
		}
		if l.Type != raft.LogCommand {
			continue
		}
		e, err := decodeEntry(l.Data)
		if err != nil {
			break // the state machine reports it
		}
		m.apply(next, e)
	}
	if m.version == 0 {
		return nil, nil
	}
	return m.state(), nil
}

func noted(d *disk) (index uint64, err error) {
	err = d.read(func(tx *bbolt.Tx) error {
		raw, err := unseal(tx.Bucket(bucketMeta), keyApplied)
		if len(raw) == 8 {
			index = binary.BigEndian.Uint64(raw)
		}
		return err
	})
	return index, err
}
