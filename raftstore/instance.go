package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// rpcTimeout exceeds a follower's write deadline.
	rpcTimeout = 2 * time.Second
	endWait    = 2 * time.Second
	cachedLogs = 512
)

// raftInstance is one raft, until its disk fails or the store stops.
type raftInstance struct {
	disk  *disk // nil in memory
	fsm   *fsm
	link  *link // nil without network
	raft  *raft.Raft
	logs  raft.LogStore
	snaps raft.SnapshotStore
	trans transport
	// cut ends once raft can send nothing more.
	cut   context.Context
	sever context.CancelFunc

	heard atomic.Pointer[heartbeat] // the last

	pending sync.WaitGroup
	mu      sync.Mutex
	ending  bool
	applied atomic.Uint64 // on the disk
}

func (s *Store) begin(d *disk) (*raftInstance, error) {
	inst := &raftInstance{disk: d, fsm: newFSM(s.publish, s.halt)}
	inst.cut, inst.sever = context.WithCancel(context.Background())
	if d != nil {
		index, err := noted(d)
		if err != nil {
			return nil, err
		}
		inst.applied.Store(index)
	}
	inst.trans = s.transport(inst)
	memory := raft.NewInmemStore()
	logs, stable, snaps := raft.LogStore(memory), raft.StableStore(memory), raft.SnapshotStore(raft.NewInmemSnapshotStore())
	if d != nil {
		store := &logStore{disk: d, cut: inst.cut.Done()}
		cache, err := raft.NewLogCache(cachedLogs, store)
		if err != nil {
			return nil, err
		}
		logs, stable, snaps = cache, store, snapshotStore{d}
		go func() {
			select {
			case <-d.failed:
			case <-d.closed:
			}
			inst.close()
		}()
	}
	r, err := raft.NewRaft(s.raftConfig(), inst.fsm, logs, stable, snaps, inst.trans)
	if err != nil {
		inst.close()
		return nil, fmt.Errorf("start raft: %w", err)
	}
	inst.raft, inst.logs, inst.snaps = r, logs, snaps
	return inst, nil
}

// formatInUse returns the newest format in the snapshot and the log, which are what a new server gets to read.
func (inst *raftInstance) formatInUse() (uint8, error) {
	format := uint8(firstFormat)
	list, err := inst.snaps.List()
	if err != nil {
		return 0, err
	}
	for _, meta := range list { // the last, if any
		_, source, err := inst.snaps.Open(meta.ID)
		if err != nil {
			return 0, err
		}
		var head [len(snapshotMagic) + 1]byte
		_, err = io.ReadFull(source, head[:])
		if err = errors.Join(err, source.Close()); err != nil {
			return 0, fmt.Errorf("snapshot %s: %w", meta.ID, err)
		}
		format = max(format, head[len(snapshotMagic)])
	}
	first, err := inst.logs.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := inst.logs.LastIndex()
	if err != nil {
		return 0, err
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		switch err := inst.logs.GetLog(i, &l); {
		case errors.Is(err, raft.ErrLogNotFound): // dropped meanwhile
		case err != nil:
			return 0, err
		case l.Type == raft.LogCommand && len(l.Data) > 0:
			format = max(format, l.Data[0])
		}
	}
	return format, nil
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

type transport interface {
	raft.Transport
	raft.WithClose
}

func (inst *raftInstance) close() {
	inst.trans.Close()
	inst.sever()
}

func (s *Store) transport(inst *raftInstance) transport {
	if s.port == nil {
		_, t := raft.NewInmemTransport(raft.ServerAddress(s.addr))
		return t
	}
	inst.link = newLink(s.port)
	return &heartbeats{&inst.heard, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: inst,
		Logger:                newRaftLog(s.log),
		Stream:                inst.link,
		MaxPool:               2,
		Timeout:               rpcTimeout,
		// In raft v1.8.0 a pipeline blocks forever if its follower refuses an entry while another
		// is queued.
		MaxRPCsInFlight: 1,
	})}
}

type heartbeat struct {
	leader string
	term   uint64
}

// heartbeats notes each heartbeat's term. Raft handles heartbeats beside its main loop, so one of the
// old leader, while raft writes a new term, makes raft name that leader in the new term.
type heartbeats struct {
	heard *atomic.Pointer[heartbeat]
	*raft.NetworkTransport
}

func (h *heartbeats) SetHeartbeatHandler(handle func(raft.RPC)) {
	h.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		a, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if last := h.heard.Load(); ok && (last == nil || last.term <= a.Term) {
			h.heard.Store(&heartbeat{string(a.ID), a.Term})
		}
		handle(rpc)
	})
}

func (inst *raftInstance) find(id raft.ServerID) (raft.Server, bool) {
	for _, server := range inst.servers() {
		if server.ID == id {
			return server, true
		}
	}
	return raft.Server{}, false
}

func (inst *raftInstance) servers() []raft.Server {
	if inst == nil || inst.raft == nil {
		return nil
	}
	return inst.raft.GetConfiguration().Configuration().Servers
}

func (inst *raftInstance) enter() bool {
	inst.mu.Lock()
	defer inst.mu.Unlock()
	if inst.ending {
		return false
	}
	inst.pending.Add(1)
	return true
}

// end reports whether raft ended in time. It waits for pending calls first, because raft may not
// answer them later.
func (inst *raftInstance) end() bool {
	inst.mu.Lock()
	inst.ending = true
	inst.mu.Unlock()
	within(endWait, inst.pending.Wait)
	inst.close()
	over := within(endWait, func() { _ = inst.raft.Shutdown().Error() })
	if over {
		_ = inst.note(0) // an error leaves an older state for the start, as a crash does
	}
	if inst.disk != nil && !inst.disk.close(endWait) {
		over = false
	}
	return over
}

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

// note stores the commit index for replay. An idle leader repeats it, to detect a hung disk.
func (inst *raftInstance) note(after time.Duration) error {
	if inst.disk == nil {
		return nil
	}
	// A new raft may lag behind its predecessor.
	applied := max(inst.raft.AppliedIndex(), inst.applied.Load())
	probe := inst.raft.State() == raft.Leader && inst.disk.idle() >= after
	if applied <= inst.applied.Load() && !probe {
		return nil
	}
	err := inst.disk.put(bucketMeta, keyApplied, logKey(applied))
	if err == nil {
		inst.applied.Store(applied)
	}
	return err
}

// replay builds the state of the snapshot and the log up to the stored commit index.
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
			return nil, fmt.Errorf("the log is damaged: entry %d is missing, although entry %d is committed", next, applied)
		}
		if err != nil {
			return nil, err
		}
		if l.Type != raft.LogCommand {
			continue
		}
		e, err := decodeEntry(l.Data)
		if err != nil {
			return m.state(), nil //nolint:nilerr // the state machine reports it
		}
		m.apply(next, e)
	}
	return m.state(), nil
}

func noted(d *disk) (index uint64, err error) {
	raw, err := d.get(bucketMeta, keyApplied)
	if len(raw) == 8 {
		index = binary.BigEndian.Uint64(raw)
	}
	return index, err
}
