package raftstore

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// fsm applies raft's committed log to the machine and publishes the states.
type fsm struct {
	publish func(*State)
	// halt gets the reason when the machine stops, and nil when a snapshot has healed it.
	halt func(error)

	mu      sync.Mutex // raft uses one goroutine; follow requests and tests use other ones
	machine *machine
	halted  error
}

var (
	_ raft.BatchingFSM = (*fsm)(nil)
	_ raft.FSM         = (*fsm)(nil)
)

func newFSM(publish func(*State), halt func(error)) *fsm {
	return &fsm{publish: publish, halt: halt, machine: newMachine()}
}

// Apply implements raft.FSM. It returns an outcome, or an error if the machine has stopped.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. It publishes one state per batch, before any caller
// learns that its command was applied.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.machine.version
	answers := make([]any, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		answers[i] = f.applyLocked(l)
	}
	if f.machine.version != before {
		f.publish(f.machine.state())
	}
	return answers
}

// applyLocked executes one entry. An entry that cannot be read stops the machine, because other
// nodes may have understood it and later entries depend on it.
func (f *fsm) applyLocked(l *raft.Log) any {
	if f.halted != nil {
		return f.halted
	}
	e, err := decodeEntry(l.Data)
	if err != nil {
		f.halted = fmt.Errorf("log entry %d cannot be applied, so the state stands still: %w", l.Index, err)
		f.halt(f.halted)
		return f.halted
	}
	return f.machine.apply(l.Index, e)
}

// Snapshot implements raft.FSM. A stopped machine refuses, because its snapshot would cover entries
// that it has not applied.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	b, err := f.encoded()
	return encodedSnapshot(b), err
}

func (f *fsm) encoded() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted != nil {
		return nil, f.halted
	}
	return f.machine.snapshot(), nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(source io.ReadCloser) error {
	b, err := io.ReadAll(io.LimitReader(source, MaxSnapshotBytes+1))
	if err != nil {
		return err
	}
	if len(b) > MaxSnapshotBytes {
		return fmt.Errorf("snapshot is larger than %d bytes", MaxSnapshotBytes)
	}
	m, err := restoreMachine(b)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machine = m
	if f.halted != nil {
		f.halted = nil
		f.halt(nil)
	}
	f.publish(m.state())
	return nil
}

func (f *fsm) stopped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.halted
}

type encodedSnapshot []byte

// Persist implements raft.FSMSnapshot.
func (s encodedSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (encodedSnapshot) Release() {}
