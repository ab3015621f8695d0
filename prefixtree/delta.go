package prefixtree

import (
	"errors"
	"time"

	"github.com/zeebo/xxh3"
)

// ErrDelta is wrapped by every error about a payload that is none.
var ErrDelta = errors.New("prefixtree: malformed delta")

// BackendKey names a backend on the wire, so that nodes need not agree on dense ids.
func BackendKey(name string) uint32 { return uint32(xxh3.HashString(name)) }

// Names translates between the dense ids of one node and the keys of the wire. Immutable, safe for concurrent use.
type Names interface {
	Key(b Backend) (key uint32, ok bool)
	Backend(key uint32) (b Backend, ok bool)
}

// Applied says what became of a payload's records.
type Applied struct {
	Records int // all of them
	News    int // changed this tree
	Unknown int // of backends this node does not know, skipped
	Late    int // of an older generation, behind a fence or past retention
}

// ApplyDelta merges a payload of another node's Outbox.
func (t *Tree) ApplyDelta(payload []byte, names Names, shift time.Duration, now Time) (Applied, error) {
	applied, _, err := t.ApplyDeltaNews(payload, names, shift, now, nil)
	return applied, err
}

// ApplyDeltaNews is ApplyDelta that also appends to news what this node alone knows better.
func (t *Tree) ApplyDeltaNews(payload []byte, names Names, shift time.Duration, now Time, news []Fact) (Applied, []Fact, error) {
	return Applied{}, news, nil
}

// ApplySnapshot merges a page of another node's Snapshot.
func (t *Tree) ApplySnapshot(page []byte, names Names, shift time.Duration, now Time) (Applied, error) {
	return t.ApplyDelta(page, names, shift, now)
}

// Snapshot yields this tree's live anchor facts, newest first, in pages of at most limit bytes, until yield returns false.
func (t *Tree) Snapshot(now Time, names Names, limit int, yield func(page []byte, records int) bool) {}

// FactDigest is the number of live anchor facts touched in [from, to) and the XOR of their mixed values.
func (t *Tree) FactDigest(now, from, to Time, names Names) (count, xor uint64) { return 0, 0 }

// Reach returns how many distinct blocks later an untouched one is gone, by this node's own evidence, and its weight.
func (t *Tree) Reach(b Backend) (blocks, evidence float64) { return 0, 0 }

// SetPeerReach tells what the other nodes have learned: the mean of their reaches, weighted by the sum of their evidence.
func (t *Tree) SetPeerReach(b Backend, blocks, evidence float64) {}
