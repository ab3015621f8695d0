package raftstore

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

type fsm struct {
	publish func(*State)
	// halt gets the reason of a stop, or nothing after a snapshot healed it.
	halt func(why string)

	mu      sync.Mutex // raft's goroutine and requests for state use the machine
	machine *machine
	halted  error
}

var _ raft.BatchingFSM = (*fsm)(nil)

func newFSM(publish func(*State), halt func(string)) *fsm {
	return &fsm{publish: publish, halt: halt, machine: newMachine()}
}

// Apply returns an outcome, or an error if the machine has stopped.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch publishes one state before a caller learns the outcome.
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

// applyLocked stops at an unreadable entry, because later ones depend on it.
func (f *fsm) applyLocked(l *raft.Log) any {
	if f.halted != nil {
		return f.halted
	}
	e, err := decodeEntry(l.Data)
	if err != nil {
		f.halted = fmt.Errorf("log entry %d cannot be applied, so the state is frozen: %w", l.Index, err)
		f.halt(f.halted.Error())
		return f.halted
	}
	return f.machine.apply(l.Index, e)
}

// Snapshot fails on a stopped machine, whose state misses entries.
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
		f.halt("")
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

func (s encodedSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

func (encodedSnapshot) Release() {}
