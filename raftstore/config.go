package raftstore

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/rs/zerolog"
)

// ALPN is the protocol that both ends of a TLS connection to the raft port name.
const ALPN = "grapevine-raft/1"

// Config says where a store keeps its data, how it is reached and who else may
// be there. Open copies it.
type Config struct {
	// Dir is the data directory; it is made if missing. Empty keeps everything in
	// memory: good for a fleet of one that starts from its configuration every
	// time, and for a node that joins others and never votes.
	Dir string
	// Listener is the node's raft port. The store owns it from Open on, even if
	// Open fails. nil means that there is no network, which needs Expect <= 1
	// and Join false.
	Listener net.Listener
	// Advertise is the host:port at which others reach Listener; empty is the
	// listener's own address.
	Advertise string
	// TLS authenticates both directions; nil is plain TCP, which is refused on
	// anything but loopback. Open adds ALPN to a copy.
	TLS *tls.Config
	// Expect is how many candidates must see each other before they form a group.
	// 0 or 1 is a fleet of one, which bootstraps itself at once unless Join is set.
	Expect int
	// Join says that other nodes exist: never bootstrap alone.
	Join bool
	// Voters is how many voters the leader keeps: 3 (0 means 3) or 5.
	Voters int
	// Server says that this node may vote. Without Dir it never does.
	Server bool
	// Peers tells which other nodes gossip knows, this one left out. It is called
	// from one goroutine at a time, about every second and after Poke, and must
	// not block. nil is nobody.
	Peers func() []Peer
	// Constants are this node's; the first leader commits its own.
	Constants Constants
	Timers    Timers
	Faults    *Faults // tests only; nil is none
	Log       zerolog.Logger
}

// Timers are the delays of a store; zero fields take the defaults given beside
// them. All nodes of a group must use the same Heartbeat.
type Timers struct {
	Heartbeat     time.Duration // 300 ms without a leader's word before an election
	Lease         time.Duration // 150 ms without a quorum before a leader steps down
	Commit        time.Duration // 50 ms until followers learn what is committed when nothing follows
	Write         time.Duration // 1 s for one write to disk, then the store is failed
	Call          time.Duration // 2 s for one Apply, Read or Transfer in all
	Poll          time.Duration // 1 s between looks at Peers
	Stable        time.Duration // 10 s in good health before a server is given a vote
	Dead          time.Duration // 5 min unreachable before a voter is replaced
	Forget        time.Duration // 10 min unreachable before a non-voter is removed
	Reopen        time.Duration // 5 s between attempts to open a failed store again
	SnapshotEvery time.Duration // 30 s between looks whether a snapshot is due
	SnapshotAfter uint64        // 512 log entries since the last snapshot make one due
	KeepLog       uint64        // 512 log entries stay behind a snapshot for slow followers
}

// Peer is another node as gossip knows it.
type Peer struct {
	ID     string // raft id; empty if unknown: it is asked for
	Name   string // for people
	Addr   string // host:port of its raft port
	Expect int    // its Config.Expect
	Server bool   // may vote
	Alive  bool
	Left   bool // said goodbye
	Since  time.Time
}
