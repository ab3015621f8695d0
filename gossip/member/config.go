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
	Seed string // entry of Config.Join, "failed member NAME" or "stream from NAME"
	Addr string
	Err  error // nil: a member now
	At   time.Time
}

// Config configures a List. New copies it.
type Config struct {
	// Listen sets Addr; Incarnation 0 means now.
	Self Info
	// Bind is the host:port of UDP and TCP; port 0 takes a free one.
	Bind string
	// Advertise is the host:port that peers dial, both optional. Default: Bind's, or for an
	// unspecified host the local address towards the first seed, else an interface's.
	Advertise string
	// Join lists "host:port", "dns:name:port" (the same), "srv:_svc._tcp.name" and "file:path" (one
	// address a line, watched), resolved again each round. The default port is 7946.
	Join []string

	// Keys are at most 8 of 16, 24 or 32 bytes, the primary first. A rotation is lost at exit.
	Keys [][]byte
	// KeyringFile holds the keys instead: a JSON list of base64, or one a line; see CheckSecret.
	// Rotations rewrite it.
	KeyringFile string
	// TLS replaces derived certificates; nil ClientCAs means RootCAs. A peer's certificate must
	// carry ServerName if set, else the peer's name or address.
	TLS      *tls.Config
	Insecure bool // any node may join a non-loopback address without a key

	// 0 means 750 ms and 400 ms: failures are detected in 3 to 4 s up to ten nodes, then times
	// log10(nodes).
	ProbeInterval, ProbeTimeout time.Duration
	RejoinInterval              time.Duration // between rounds that dial join addresses and failed members; 0 means 5 s

	// OnEvent is called in order by one goroutine; while it blocks, a member's changes are merged.
	OnEvent func(Event)
	// Serve runs in a goroutine per incoming knowledge stream, returns when the stream closes, and
	// closes it by returning.
	Serve func(c *Conn)
	Log   zerolog.Logger
}

const (
	DefaultPort = "7946"

	defaultProbeInterval  = 750 * time.Millisecond
	defaultProbeTimeout   = 400 * time.Millisecond
	defaultRejoinInterval = 5 * time.Second
)
