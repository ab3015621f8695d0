package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// A snapshot is the whole machine; equal machines have equal snapshots:
//
//	magic        4 bytes, "GVRS"
//	format       1 byte, 1
//	version      uvarint
//	constants    as in a command
//	rules        version uvarint, text
//	switches     1 byte, bit 0: hot
//	retired      uvarint, the highest generation of a removed backend
//	backends     count, then each, sorted by name
//	hot          count, then each, sorted by anchor
//	outcomes     count, then each, oldest first
//	checksum     4 bytes, CRC-32C of everything before, big-endian
const (
	snapshotMagic  = "GVRS"
	snapshotFormat = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errUnknownSnapshot means a newer program's snapshot.
var errUnknownSnapshot = errors.New("snapshot of an unknown version")

func (m *machine) snapshot() []byte {
	dst := make([]byte, 0, 1024+160*len(m.backends)+32*len(m.order))
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotFormat)
	dst = binary.AppendUvarint(dst, m.version)
	dst = appendConstants(dst, m.constants)
	dst = binary.AppendUvarint(dst, m.rules.Version)
	dst = appendString(dst, m.rules.Text)
	dst = appendBool(dst, m.switches.Hot)
	dst = binary.AppendUvarint(dst, uint64(m.retired))
	dst = binary.AppendUvarint(dst, uint64(len(m.backends)))
	for _, b := range m.backends {
		dst = appendBackend(dst, b)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.hot)))
	for _, h := range m.hot {
		dst = appendHot(dst, h)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.order)))
	for i := range m.order {
		id := m.order[(m.head+i)%len(m.order)]
		dst = appendOutcome(append(dst, id[:]...), m.outcomes[id])
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
}

func appendBackend(dst []byte, b Backend) []byte {
	dst = binary.AppendUvarint(dst, uint64(b.Generation))
	dst = appendSpec(dst, b)
	dst = append(dst, byte(b.State))
	dst = appendBool(dst, b.Drained)
	dst = append(dst, byte(b.DrainedBy), byte(b.DownBy))
	dst = binary.AppendVarint(dst, b.Since)
	dst = appendString(dst, b.Reason)
	return binary.AppendUvarint(dst, b.Version)
}

func appendHot(dst []byte, h HotPrefix) []byte {
	dst = binary.BigEndian.AppendUint64(dst, h.Anchor)
	dst = binary.AppendUvarint(dst, uint64(h.Depth))
	dst = binary.AppendUvarint(dst, uint64(h.R))
	dst = binary.AppendVarint(dst, h.Expires)
	dst = binary.AppendVarint(dst, h.Since)
	return binary.AppendVarint(dst, h.LastChange)
}

// appendOutcome also encodes a leader's answers.
func appendOutcome(dst []byte, o outcome) []byte {
	dst = binary.AppendUvarint(dst, o.result.Index)
	dst = appendBool(dst, o.result.Changed)
	if o.refuse == nil {
		return append(dst, 0)
	}
	return appendString(append(dst, byte(o.refuse.code)), o.refuse.text)
}

func (d *decoder) outcome() outcome {
	o := outcome{result: Result{Index: d.uint(math.MaxUint64), Changed: d.bool()}}
	if code := refusalCode(d.enum(byte(refusedTooMany))); code != 0 {
		o.refuse = &refusal{code, d.string(maxRefusalBytes)}
	}
	return o
}

func restoreMachine(b []byte) (*machine, error) {
	if len(b) < len(snapshotMagic)+1+crc32.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, errors.New("this is no snapshot")
	}
	if format := b[len(snapshotMagic)]; format != snapshotFormat {
		return nil, fmt.Errorf("%w: format %d", errUnknownSnapshot, format)
	}
	body, sum := b[:len(b)-crc32.Size], binary.BigEndian.Uint32(b[len(b)-crc32.Size:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("snapshot is damaged: the checksum differs")
	}
	m, err := decodeMachine(body[len(snapshotMagic)+1:])
	if err != nil {
		return nil, fmt.Errorf("snapshot is damaged: %w", err)
	}
	return m, nil
}

func decodeMachine(b []byte) (*machine, error) {
	d := &decoder{b: b}
	m := newMachine()
	m.version = d.uint(math.MaxUint64)
	m.constants = d.constants()
	m.rules = Rules{Version: d.uint(math.MaxUint64), Text: d.string(MaxRulesBytes)}
	m.switches.Hot = d.bool()
	m.retired = uint32(d.uint(math.MaxUint32))
	if err := m.decodeBackends(d); err != nil {
		return nil, err
	}
	m.hot = make([]HotPrefix, d.count(MaxHot, 13))
	for i := range m.hot {
		m.hot[i] = HotPrefix{
			Anchor: d.uint64(), Depth: uint32(d.uint(math.MaxUint32)), R: uint16(d.uint(math.MaxUint16)),
			Expires: d.int(), Since: d.int(), LastChange: d.int(),
		}
		if i > 0 && m.hot[i-1].Anchor >= m.hot[i].Anchor {
			return nil, errors.New("hot prefixes are not in order")
		}
	}
	n := d.count(maxOutcomes, len(requestID{})+3)
	m.order = make([]requestID, n)
	for i := range m.order {
		copy(m.order[i][:], d.take(len(requestID{})))
		m.outcomes[m.order[i]] = d.outcome()
	}
	if err := d.done(); err != nil {
		return nil, err
	}
	if len(m.outcomes) != n {
		return nil, errors.New("a request is remembered twice")
	}
	return m, nil
}

func (m *machine) decodeBackends(d *decoder) error {
	// The shortest backend has 21 bytes.
	m.backends = make([]Backend, d.count(MaxBackends, 21))
	for i := range m.backends {
		b := &m.backends[i]
		generation := uint32(d.uint(math.MaxUint32))
		*b = d.spec()
		b.Generation, b.State, b.Drained = generation, BackendState(d.enum(byte(Down))), d.bool()
		b.DrainedBy, b.DownBy, b.Since = d.author(), d.author(), d.int()
		b.Reason, b.Version = d.string(MaxReasonBytes), d.uint(math.MaxUint64)
		if d.err != nil {
			return d.err
		}
		_, taken := m.urls[b.URL]
		switch {
		case i > 0 && m.backends[i-1].Name >= b.Name:
			return fmt.Errorf("backend %q is not in order", b.Name)
		case taken:
			return fmt.Errorf("url of backend %q is taken", b.Name)
		}
		m.urls[b.URL] = b.Name
	}
	return nil
}
