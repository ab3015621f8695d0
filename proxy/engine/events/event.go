// Package events reads an engine's stream of KV cache events: which blocks the engine stored and removed. It finds the
// streams of an engine, subscribes to them, decodes them, and repairs gaps by the engine's replay. It keeps no blocks.
package events

// Kind is what happened to blocks.
type Kind uint8

const (
	Stored  Kind = iota // the engine began to fill Hashes, or copied them to Tier
	Removed             // one copy of each of Hashes is gone from Tier
	Cleared             // every block of the rank is gone, on every tier
)

// Tier is the memory that holds a block.
type Tier uint8

const (
	GPU Tier = iota
	CPU
	Disk
)

// Event is one change of an engine's cache. One hash may have several copies on a tier: vLLM announces each when it is stored
// and each when it is removed, so a consumer counts copies per hash, group and tier.
//
// Hashes and Session are the decoder's memory: they are valid until Sink.Batch returns.
type Event struct {
	Kind      Kind
	Hashes    []uint64 // the low 64 bits of the engine's block hashes, root to leaf; each covers the whole prefix
	Parent    uint64   // hash of the block before Hashes[0], if HasParent
	HasParent bool     // Stored only: false at the first block of a prompt, and if BlockSize is 0
	BlockSize int      // Stored only: tokens per block; fewer in a partial block; 0 if the engine names only the hashes
	Tokens    int      // Stored only: token ids that the event carried, over all of Hashes
	Group     int32    // the KV cache group of a hybrid model; 0 where the engine names none
	Tier      Tier
	Session   []byte // Stored only: the session id of the request that stored the blocks; nil if it had none
}

// State is how far a stream can be trusted.
type State uint8

const (
	Live     State = iota // every batch since the stream's start or the last Reset has arrived
	Degraded              // 1 to 1,024 batches since then are lost; lasts until a Reset, or until the engine clears its cache
	Down                  // not connected, silent (see Stream.Silent), losing batches again and again (see Losses), or it is not yet certain that the engine is still the same process
)

func (s State) String() string {
	switch s {
	case Live:
		return "live"
	case Degraded:
		return "degraded"
	case Down:
		return "down"
	}
	return "unknown"
}

// Sink receives one stream, in the engine's order, from one goroutine.
type Sink interface {
	// Batch applies one batch. The events and what they point to are reused after it returns.
	Batch(events []Event)
	// Reset forgets every block of the stream: the engine restarted, or too many batches are lost. The stream goes on
	// with what the engine stores from now.
	Reset(why string)
	// State reports a new state, or a new reason for it: each loss and each failed connection has one. The first call
	// says Down.
	State(s State, why string)
}
