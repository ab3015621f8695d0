package member

import (
	"crypto/tls"
	"time"

	"github.com/rs/zerolog"
)

// Kind is a change of a member.
type Kind uint8

// Changes of a member.
const (
	// Joined means that the member became alive.
	Joined Kind = iota + 1
	// Updated means that the same process changed its Info.
	Updated
	// Left means that the member announced its end.
	Left
	// Failed means that the member is dead or unreachable.
	Failed
)

func (k Kind) String() string {
	switch k {
	case Joined:
		return "joined"
	case Updated:
		return "updated"
	case Left:
		return "left"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// Event returns the value of the log field "event".
func (k Kind) Event() string { return "peer_" + k.String() }

// Event is one change of another member.
type Event struct {
	Kind   Kind
	Member Info
}

// State is the believed state of a member.
type State uint8

// States of a member.
const (
	StateAlive State = iota + 1
	StateFailed
	StateLeft
)

func (s State) String() string {
	switch s {
	case StateAlive:
		return "alive"
	case StateFailed:
		return "failed"
	case StateLeft:
		return "left"
	}
	return "unknown"
}

func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Status is a member, its believed state, and the time of the last change of state.
type Status struct {
	Info
	State State
	Since time.Time
}

// SeedError is the outcome of the last attempt to join through one address.
type SeedError struct {
	// Seed is the entry of Config.Join, "failed member NAME" or "stream from NAME".
	Seed string
	// Addr is the resolved address; empty if resolution failed.
	Addr string
	// Err is nil if the node there is a member now.
	Err error
	At  time.Time
}

// Refusal is a refused node and the reason.
type Refusal struct {
	// Addr is the address that it came from; for metadata relayed by peers, the node's own address.
	Addr string
	// Name is its claimed name; empty if it was refused earlier.
	Name string
	Err  error
	At   time.Time
	// Count is the number of equal refusals.
	Count int
}

// Config configures a List. New copies it.
type Config struct {
	// Self describes this node. Listen sets Addr. Incarnation 0 means now.
	Self Info
	// Bind is the host:port to listen on, UDP and TCP; port 0 takes a free one. An empty or
	// unspecified host means every interface.
	Bind string
	// Advertise is the host:port that peers dial; host and port are each optional. Default: Bind's,
	// and for an unspecified host the local address on the route to the first seed, else an
	// interface's address, private IPv4 preferred.
	Advertise string
	// Join lists addresses of members: "host:port" (all addresses of the host), "dns:name:port"
	// (the same), "srv:_svc._tcp.name", "file:path" (one address a line, watched). The default port
	// is 7946. Names are resolved again in every round (RejoinInterval).
	Join []string

	// Keys are the fleet's keys, at most 8 of 16, 24 or 32 bytes each, the primary first. A
	// rotation is lost when the process ends.
	Keys [][]byte
	// KeyringFile holds the keys instead: a JSON list of base64, or one key a line. It must be
	// private (see CheckSecret). A rotation rewrites it.
	KeyringFile string
	// TLS replaces derived certificates with the operator's: Certificates, RootCAs (checks dialed
	// peers), ClientCAs (checks dialing peers; nil means RootCAs). A peer's certificate must carry
	// ServerName if set, else the peer's name or address.
	TLS *tls.Config
	// Insecure allows a non-loopback address without a key: streams are encrypted, but any node may
	// join.
	Insecure bool

	// ProbeInterval and ProbeTimeout tune failure detection; 0 means 750 ms and 400 ms, which
	// detects a dead node in 3 to 4 s in fleets of up to ten nodes, later by a factor of
	// log10(nodes) above.
	ProbeInterval, ProbeTimeout time.Duration
	// RejoinInterval is the longest pause between rounds that resolve Join and dial every address
	// that is no member, and members that failed lately; 0 means 5 s. Actual pauses are at random
	// at least half.
	RejoinInterval time.Duration

	// OnEvent is called in order by one goroutine. While it blocks, changes of one member are
	// merged.
	OnEvent func(Event)
	// Serve is called in its own goroutine for every knowledge stream that a peer opens. The stream
	// closes when Serve returns; Serve must return when the stream closes.
	Serve func(c *Conn)
	Log   zerolog.Logger

	// Cut is for tests: it reports whether this node must behave as if the gossip address addr were
	// unreachable. Safe for concurrent use. Open streams are not affected.
	Cut func(addr string) bool

	// resolver resolves names; nil means the system's.
	resolver resolver
	// handshake bounds the time until a connection is authenticated; 0 means handshakeTimeout.
	handshake time.Duration
}

const (
	// DefaultPort is the port of an address without one.
	DefaultPort = "7946"

	defaultProbeInterval  = 750 * time.Millisecond
	defaultProbeTimeout   = 400 * time.Millisecond
	defaultRejoinInterval = 5 * time.Second
)
