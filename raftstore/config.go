package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"time"

	"github.com/rs/zerolog"
)

const ALPN = "grapevine-raft/1"

// Streams connect stores; both ends are authenticated before Accept or Dial returns. Close makes
// Accept fail.
type Streams interface {
	net.Listener
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// Config configures a store. Open copies it.
type Config struct {
	// Dir is the data directory; empty keeps everything in memory, for a lone node or one without a
	// vote.
	Dir string
	// Open takes ownership of Streams. nil means no network.
	Streams Streams
	// Founders are the addresses (host:port) of the 1, 3 or 5 nodes that found the group, this one
	// included, equal on each, in any order.
	Founders []string
	// Join keeps a node without Founders from founding a group alone.
	Join bool
	// Voters is 1, 3 or 5; 0 means 3, or 5 with 5 founders.
	Voters int
	// Server allows this node to vote, except with Join and without Dir.
	Server bool
	// Peers lists the other nodes that gossip knows. Calls do not overlap and must not block.
	Peers func() []Peer
	// Met says whether gossip has met the fleet; founders and recovered data wait for it.
	Met       func() bool
	Constants Constants
	Timers    Timers
	Log       zerolog.Logger

	beforeWrite func() error // tests inject disk faults; nil does nothing
	knows       uint8        // tests play an older program, which knows formats up to this; 0 means newestFormat
}

// Timers are a store's delays; zero means the default given here. Heartbeat must be equal in a
// group.
type Timers struct {
	Heartbeat     time.Duration // 300 ms without a leader before an election
	Lease         time.Duration // without a quorum before a leader steps down; default Heartbeat
	Commit        time.Duration // 50 ms until followers learn the commit index
	Write         time.Duration // 1 s for a disk write before the disk has failed
	Probe         time.Duration // 5 s without a write before a leader tests its disk
	Call          time.Duration // 1.8 s per call of Apply, Read or Transfer
	Poll          time.Duration // 1 s between looks at Peers
	Stable        time.Duration // 10 s healthy before a server gets a vote
	Dead          time.Duration // 5 min unreachable before a voter is replaced
	Forget        time.Duration // 10 min unreachable before a non-voter is removed
	Settle        time.Duration // 5 s without a rival group before recovered data is in service
	Reopen        time.Duration // 5 s between attempts to reopen a failed disk
	SnapshotEvery time.Duration // 30 s between checks for a due snapshot
	SnapshotAfter uint64        // 512 new log entries before a snapshot is due
	KeepLog       uint64        // 512 log entries kept behind a snapshot for slow followers
}

type Peer struct {
	ID     string // empty if unknown
	Name   string
	Addr   string // host:port for Streams.Dial
	Server bool
	Alive  bool
	Left   bool
	Since  time.Time // last change of Alive or Left; may be zero
}

func (c Config) normal() (Config, error) {
	switch {
	case c.Voters == 0:
		c.Voters = max(3, len(c.Founders))
	case c.Voters != 1 && c.Voters != 3 && c.Voters != 5:
		return c, fmt.Errorf("voters: %d is not 1, 3 or 5", c.Voters)
	}
	switch n := len(c.Founders); {
	case n != 0 && n != 1 && n != 3 && n != 5:
		return c, fmt.Errorf("founders: %d are not 1, 3 or 5", n)
	case n > 0 && c.Dir == "":
		return c, errors.New("founders: a voter must not forget its vote, so it needs a data directory")
	case n > 0 && !c.Server:
		return c, errors.New("founders: a node that may not vote cannot help to found a group")
	case c.Streams == nil && (n > 0 || c.Join):
		return c, errors.New("a node that has a group with others needs streams to them")
	}
	c.Founders = slices.Sorted(slices.Values(c.Founders))
	if c.Constants != (Constants{}) {
		if err := (SetConstants{c.Constants}).validate(); err != nil {
			return c, err
		}
	}
	if c.Dir == "" && c.Join {
		// A voter must not forget its vote.
		c.Server = false
	}
	if c.Peers == nil {
		c.Peers = func() []Peer { return nil }
	}
	if c.Met == nil {
		c.Met = func() bool { return true }
	}
	c.knows = cmp.Or(c.knows, newestFormat)
	c.Timers.fill()
	return c, nil
}

var defaultTimers = Timers{
	Heartbeat: 300 * time.Millisecond, Lease: 300 * time.Millisecond, Commit: 50 * time.Millisecond,
	Write: time.Second, Probe: 5 * time.Second, Call: 1800 * time.Millisecond, Poll: time.Second, Stable: 10 * time.Second,
	Dead: 5 * time.Minute, Forget: 10 * time.Minute, Settle: 5 * time.Second, Reopen: 5 * time.Second,
	SnapshotEvery: 30 * time.Second, SnapshotAfter: 512, KeepLog: 512,
}

func (t *Timers) fill() {
	t.Lease = cmp.Or(t.Lease, t.Heartbeat)
	given, usual := reflect.ValueOf(t).Elem(), reflect.ValueOf(defaultTimers)
	for i := range given.NumField() {
		if given.Field(i).IsZero() {
			given.Field(i).Set(usual.Field(i))
		}
	}
}
