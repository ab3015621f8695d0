package raftstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A snapshot is "GVRS", a byte for the format, a snapshotBody, and the CRC-32C of everything
// before, big-endian. Equal machines have equal snapshots.
const snapshotMagic = "GVRS"

type snapshotBody struct {
	Version   uint64
	Constants Constants
	Rules     Rules
	Switches  Switches
	Retired   uint32      // the highest generation of a removed backend
	Backends  []Backend   // sorted by name
	Hot       []HotPrefix // sorted by anchor
	Outcomes  []rememberedOutcome
}

type rememberedOutcome struct {
	Request requestID
	Outcome outcome
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errUnknownSnapshot = errors.New("snapshot of an unknown version")

func (m *machine) snapshot() []byte {
	body := snapshotBody{
		Version: m.version, Constants: m.constants, Rules: m.rules, Switches: m.switches, Retired: m.retired,
		Backends: m.backends, Hot: m.hot, Outcomes: make([]rememberedOutcome, len(m.order)),
	}
	for i := range m.order {
		id := m.order[(m.head+i)%len(m.order)]
		body.Outcomes[i] = rememberedOutcome{id, m.outcomes[id]}
	}
	dst := make([]byte, 0, 1024+160*len(m.backends)+32*len(m.order))
	dst, format := encodeOldest(append(append(dst, snapshotMagic...), 0), body)
	dst[len(snapshotMagic)] = format
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
}

func restoreMachine(b []byte) (*machine, error) {
	if len(b) < len(snapshotMagic)+1+crc32.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, errors.New("this is no snapshot")
	}
	format := b[len(snapshotMagic)]
	if format < firstFormat || format > newestFormat {
		return nil, fmt.Errorf("%w: format %d", errUnknownSnapshot, format)
	}
	body, sum := b[:len(b)-crc32.Size], binary.BigEndian.Uint32(b[len(b)-crc32.Size:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("snapshot is damaged: the checksum differs")
	}
	m, err := decodeMachine(body[len(snapshotMagic)+1:], format)
	if err != nil {
		return nil, fmt.Errorf("snapshot is damaged: %w", err)
	}
	return m, nil
}

func decodeMachine(b []byte, format uint8) (*machine, error) {
	var s snapshotBody
	if err := decodeFormat(b, format, &s); err != nil {
		return nil, err
	}
	m := newMachine()
	m.version, m.constants, m.rules, m.switches, m.retired = s.Version, s.Constants, s.Rules, s.Switches, s.Retired
	m.backends, m.hot = s.Backends, s.Hot
	for _, b := range s.Backends {
		m.urls[b.URL] = b.Name
	}
	for _, o := range s.Outcomes {
		m.order = append(m.order, o.Request)
		m.outcomes[o.Request] = o.Outcome
	}
	name := func(b Backend) string { return b.Name }
	anchor := func(h HotPrefix) uint64 { return h.Anchor }
	switch {
	case !ascending(m.backends, name) || !ascending(m.hot, anchor):
		return nil, errors.New("it is not in order")
	case len(m.urls) != len(m.backends) || len(m.outcomes) != len(m.order):
		return nil, errors.New("it repeats itself")
	case len(m.backends) > MaxBackends || len(m.hot) > MaxHot || len(m.order) > maxOutcomes:
		return nil, errors.New("it is too long")
	}
	return m, nil
}

func ascending[T any, K cmp.Ordered](list []T, key func(T) K) bool {
	for i := 1; i < len(list); i++ {
		if key(list[i-1]) >= key(list[i]) {
			return false
		}
	}
	return true
}
