package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

var (
	keySnapshotMeta = []byte("meta")
	keySnapshotData = []byte("data")
)

// snapshotStore replaces the snapshot in one transaction, so a crash leaves no partial one.
type snapshotStore struct{ disk *disk }

func (s snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &snapshotSink{disk: s.disk, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

func (s snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	meta, _, err := s.load(false)
	if meta == nil || err != nil {
		return nil, err
	}
	return []*raft.SnapshotMeta{meta}, nil
}

func (s snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, data, err := s.load(true)
	switch {
	case err != nil:
		return nil, nil, err
	case meta == nil || meta.ID != id:
		return nil, nil, fmt.Errorf("snapshot %s does not exist", id)
	}
	return meta, io.NopCloser(bytes.NewReader(data)), nil
}

func (s snapshotStore) load(withData bool) (meta *raft.SnapshotMeta, data []byte, err error) {
	err = s.disk.read(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSnapshot)
		raw, err := unseal(b, keySnapshotMeta)
		if raw == nil || err != nil {
			return err
		}
		if withData {
			data = bytes.Clone(b.Get(keySnapshotData))
		}
		meta = new(raft.SnapshotMeta)
		if err := json.Unmarshal(raw, meta); err != nil {
			return fmt.Errorf("description of the snapshot is damaged: %w", err)
		}
		return nil
	})
	return meta, data, err
}

type snapshotSink struct {
	disk *disk
	meta raft.SnapshotMeta
	data bytes.Buffer
	done bool
}

func (s *snapshotSink) ID() string { return s.meta.ID }

func (s *snapshotSink) Write(p []byte) (int, error) {
	if s.data.Len()+len(p) > MaxSnapshotBytes {
		return 0, fmt.Errorf("snapshot is larger than %d bytes", MaxSnapshotBytes)
	}
	return s.data.Write(p)
}

func (s *snapshotSink) Cancel() error {
	s.done = true
	return nil
}

func (s *snapshotSink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	if s.data.Len() == 0 {
		return errors.New("snapshot is empty")
	}
	s.meta.Size = int64(s.data.Len())
	meta, err := json.Marshal(s.meta)
	if err != nil {
		return err
	}
	return s.disk.write(s.data.Len(), func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSnapshot)
		if err := b.Put(keySnapshotData, s.data.Bytes()); err != nil {
			return err
		}
		return seal(b, keySnapshotMeta, meta)
	})
}
