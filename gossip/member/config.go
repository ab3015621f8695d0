package member

import (
	"crypto/tls"
	"time"

	"github.com/rs/zerolog"
)

// Kind is a change of a member, and the value of the log field "event".
type Kind string

const (
	Joined  Kind = "peer_joined"  // became alive
	Updated Kind = "peer_updated" // the same process changed its Info
	Left    Kind = "peer_left"    // announced its end
	Failed  Kind = "peer_failed"  // is dead or unreachable
)

// Event is one change of another member.
type Event struct {
	Kind   Kind
	Member Info
}

// State is the believed state of a member.
type State string

const (
	StateAlive  State = "alive"
	StateFailed State = "failed"
	StateLeft   State = "left"
)

// Status is a member and its believed state.
type Status struct {
	Info
	State State
	Since time.Time
}

// SeedError is the last attempt to join through one address.
type SeedError struct {
	// Seed is the entry of Config.Join, "failed member NAME" or "stream from NAME".
	Seed string
	Addr string
	// Err is nil if the node there is a member now.
	Err error
	At  time.Time
}

// Config configures a List. New copies it.
type Config struct {
	// Self describes this node. Listen sets Addr. Incarnation 0 means now.
	Self Info
	// Bind is the UDP and TCP host:port; port 0 takes a free one, an unspecified host every
	// interface.
	Bind string
	// Advertise is the host:port that peers dial; both parts are optional. Default: Bind's; for an
	// unspecified host, the local address on the route to the first seed, else an interface's.
	Advertise string
	// Join lists "host:port", "dns:name:port" (the same), "srv:_svc._tcp.name" and "file:path" (one
	// address a line, watched). The default port is 7946. Every round resolves names again.
	Join []string

	// Keys are at most 8 keys of 16, 24 or 32 bytes, the primary first. A rotation is lost at exit.
	Keys [][]byte
	// KeyringFile holds the keys instead: a JSON list of base64, or one key a line, private (see
	// CheckSecret). A rotation rewrites it.
	KeyringFile string
	// TLS replaces derived certificates: Certificates, RootCAs (for dialed peers), ClientCAs (for
	// dialing peers; nil means RootCAs). A peer's certificate must carry ServerName if set, else
	// the peer's name or address.
	TLS *tls.Config
	// Insecure allows any node to join a non-loopback address without a key.
	Insecure bool

	// ProbeInterval and ProbeTimeout tune failure detection; 0 means 750 ms and 400 ms (3 to 4 s up
	// to ten nodes, then times log10(nodes)).
	ProbeInterval, ProbeTimeout time.Duration
	// RejoinInterval is the longest pause between rounds that dial join addresses and recently
	// failed members; 0 means 5 s.
	RejoinInterval time.Duration

	// OnEvent is called in order by one goroutine. While it blocks, a member's changes are merged.
	OnEvent func(Event)
	// Serve runs in its own goroutine for every knowledge stream that a peer opens, which closes on
	// return. Serve must return when the stream closes.
	Serve func(c *Conn)
	Log   zerolog.Logger
}

const (
	DefaultPort = "7946"

	defaultProbeInterval  = 750 * time.Millisecond
	defaultProbeTimeout   = 400 * time.Millisecond
	defaultRejoinInterval = 5 * time.Second
)
