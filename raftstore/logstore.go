package raftstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

const logRecordFormat = 1

var keyTerm = []byte("CurrentTerm")

// logStore keeps raft's log, term and vote. A log entry's key is its index, 8 bytes big-endian; its
// value is a logRecord and the CRC-32C of both.
type logStore struct {
	disk *disk
	// for SetUint64
	cut <-chan struct{}
}

func logKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

type logRecord struct {
	Format           uint8
	Type             uint8 // raft's
	Term             uint64
	Appended         int64 // unix ns, 0 if unknown
	Data, Extensions []byte
}

func encodeLog(key []byte, l *raft.Log) []byte {
	r := logRecord{Format: logRecordFormat, Type: uint8(l.Type), Term: l.Term, Data: l.Data, Extensions: l.Extensions}
	if !l.AppendedAt.IsZero() {
		r.Appended = l.AppendedAt.UnixNano()
	}
	dst := encode(make([]byte, 0, len(l.Data)+len(l.Extensions)+40), r)
	return binary.BigEndian.AppendUint32(dst, logSum(key, dst))
}

func logSum(key, record []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, record)
}

func decodeLog(key, record []byte, l *raft.Log) error {
	if len(key) != 8 || len(record) < crc32.Size+2 {
		return errShort
	}
	body := record[:len(record)-crc32.Size]
	if logSum(key, body) != binary.BigEndian.Uint32(record[len(body):]) {
		return errors.New("the checksum differs")
	}
	if body[0] != logRecordFormat {
		return fmt.Errorf("format %d is unknown", body[0])
	}
	var r logRecord
	if err := decode(body, &r); err != nil {
		return err
	}
	*l = raft.Log{Index: binary.BigEndian.Uint64(key), Type: raft.LogType(r.Type), Term: r.Term, Data: r.Data, Extensions: r.Extensions}
	if r.Appended != 0 {
		l.AppendedAt = time.Unix(0, r.Appended)
	}
	return nil
}

// check reads everything, because raft panics over an unreadable entry.
func (s *logStore) check() error {
	err := s.disk.read(func(tx *bbolt.Tx) error {
		stable := tx.Bucket(bucketStable)
		return stable.ForEach(func(k, _ []byte) error {
			_, err := unseal(stable, k)
			return err
		})
	})
	return cmp.Or(err, s.each(func(*raft.Log) {}))
}

func (s *logStore) each(visit func(*raft.Log)) error {
	return s.disk.read(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketLog).ForEach(func(k, v []byte) error {
			var l raft.Log
			if err := decodeLog(k, v, &l); err != nil {
				return fmt.Errorf("log entry %x is damaged: %w", k, err)
			}
			visit(&l)
			return nil
		})
	})
}

func (s *logStore) FirstIndex() (uint64, error) { return s.end((*bbolt.Cursor).First) }

func (s *logStore) LastIndex() (uint64, error) { return s.end((*bbolt.Cursor).Last) }

func (s *logStore) end(of func(*bbolt.Cursor) ([]byte, []byte)) (index uint64, err error) {
	err = s.disk.read(func(tx *bbolt.Tx) error {
		if k, _ := of(tx.Bucket(bucketLog).Cursor()); k != nil {
			index = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return index, err
}

func (s *logStore) GetLog(index uint64, l *raft.Log) error {
	return s.disk.read(func(tx *bbolt.Tx) error {
		key := logKey(index)
		record := tx.Bucket(bucketLog).Get(key)
		if record == nil {
			return raft.ErrLogNotFound
		}
		if err := decodeLog(key, record, l); err != nil {
			return fmt.Errorf("log entry %d is damaged: %w", index, err)
		}
		return nil
	})
}

func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *logStore) StoreLogs(logs []*raft.Log) error {
	keys, records, size := make([][]byte, len(logs)), make([][]byte, len(logs)), 0
	for i, l := range logs {
		keys[i] = logKey(l.Index)
		records[i] = encodeLog(keys[i], l)
		size += len(records[i])
	}
	return s.disk.write(size, func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLog)
		b.FillPercent = 0.9 // keys only grow
		for i := range keys {
			if err := b.Put(keys[i], records[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *logStore) DeleteRange(first, last uint64) error {
	return s.disk.write(0, func(tx *bbolt.Tx) error {
		c, from := tx.Bucket(bucketLog).Cursor(), logKey(first)
		// A bbolt cursor must not advance from a deleted key.
		for k, _ := c.Seek(from); k != nil && binary.BigEndian.Uint64(k) <= last; k, _ = c.Seek(from) {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *logStore) Set(key, val []byte) error { return s.disk.put(bucketStable, key, val) }

func (s *logStore) Get(key []byte) ([]byte, error) { return s.disk.get(bucketStable, key) }

// SetUint64 hides a failed write of the term, over which raft would panic. It first waits until
// raft's connections are closed, so that no other node hears of the term.
func (s *logStore) SetUint64(key []byte, val uint64) error {
	err := s.Set(key, binary.BigEndian.AppendUint64(nil, val))
	if err != nil && string(key) == string(keyTerm) {
		<-s.cut
		return nil
	}
	return err
}

func (s *logStore) GetUint64(key []byte) (uint64, error) {
	val, err := s.Get(key)
	if err != nil || len(val) == 0 {
		return 0, err
	}
	if len(val) != 8 {
		return 0, fmt.Errorf("%s is damaged: %d bytes", key, len(val))
	}
	return binary.BigEndian.Uint64(val), nil
}
