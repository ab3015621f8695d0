package member

import (
	"crypto/tls"
	"time"

	"github.com/rs/zerolog"
)

// Kind says what happened to a member.
type Kind uint8

// What can happen to a member.
const (
	// Joined: the member is alive and was not before, or came back.
	Joined Kind = iota + 1
	// Updated: what the member tells of itself has changed; it is the same process.
	Updated
	// Left: the member said that it goes.
	Left
	// Failed: the member is dead or cannot be reached.
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

// Event is the value of the field "event" in the log line about it.
func (k Kind) Event() string { return "peer_" + k.String() }

// Event is one change of membership. Events about this node itself are not sent.
type Event struct {
	Kind   Kind
	Member Info
}

// State is what is believed of a member.
type State uint8

// What can be believed of a member.
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

// MarshalText makes a State readable in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Status is a member, what is believed of it, and since when.
type Status struct {
	Info
	State State
	Since time.Time
}

// SeedError is the outcome of the last attempt to join through one address.
type SeedError struct {
	// Seed is the entry of Config.Join, "failed member NAME" or "stream from NAME".
	Seed string
	// Addr is the address it resolved to; empty if it did not.
	Addr string
	// Err is nil if the node there is a member by now.
	Err error
	At  time.Time
}

// Refusal is a node that was turned away, and why.
type Refusal struct {
	// Addr is where it came from; for metadata heard from others, the node's own address.
	Addr string
	// Name is what it calls itself; empty if it was turned away before it said so.
	Name string
	Err  error
	At   time.Time
	// Count is how often in a row.
	Count int
}

// Config says how a node takes part in a fleet. New copies it.
type Config struct {
	// Self is what the node tells of itself. Addr is filled in by Start.
	// Incarnation 0 means now.
	Self Info
	// Bind is the host:port to listen on, UDP and TCP; port 0 takes a free one.
	// No host, or an unspecified one, means every interface.
	Bind string
	// Advertise is the host:port that others dial; host and port may each be
	// left out. Empty: Bind's, and for an unspecified host the address that
	// leads to the first seed, else a private address of an interface.
	Advertise string
	// Join lists where members are found: "host:port" (all addresses of the
	// host), "dns:name:port" (the same, said explicitly), "srv:_svc._tcp.name",
	// "file:path" (one address a line, watched). A port left out is 7946.
	// Names are resolved again in every RejoinInterval.
	Join []string

	// Keys are the fleet's keys, 16, 24 or 32 bytes each, the primary first;
	// at most 8. A rotation then lasts until the process ends.
	Keys [][]byte
	// KeyringFile holds the keys instead: a JSON list of base64, or one key a
	// line; not readable by everyone; rewritten by a rotation.
	KeyringFile string
	// TLS makes the streams use the operator's certificates instead of derived
	// ones: certificates, RootCAs (for peers that are dialed), ClientCAs (for
	// peers that dial; nil means RootCAs). With ServerName set, every peer's
	// certificate must carry that name; else its node's name or its address.
	TLS *tls.Config
	// Insecure allows no key on an address that is not loopback: the streams
	// are then encrypted, but anybody may join.
	Insecure bool

	// ProbeInterval and ProbeTimeout tune failure detection; 0 means 750 ms
	// and 400 ms: a dead node is known in about 3 to 4 s in fleets of up to
	// ten, later by a factor of log10 of the number of nodes beyond that.
	ProbeInterval, ProbeTimeout time.Duration
	// RejoinInterval is the longest pause between two rounds that resolve Join
	// again and knock on every address that is no member, and on members that
	// failed lately; 0 means 5 s. The real pause is at random between half of it and all.
	RejoinInterval time.Duration

	// OnEvent is called in order by one goroutine. It must not block long:
	// meanwhile changes of one member are merged into one.
	OnEvent func(Event)
	// Serve is called in a goroutine of its own for every knowledge stream that
	// another node has opened. The stream is closed when Serve returns; Serve
	// must return when the stream is closed.
	Serve func(c *Conn)
	Log   zerolog.Logger

	// Cut, for tests only, reports whether this node must behave as if nothing
	// could be sent to or received from the gossip address addr. It must be
	// safe for concurrent use. Streams that exist are not touched by it.
	Cut func(addr string) bool

	// resolver answers for names; nil means the system's.
	resolver resolver
	// handshake bounds the time until a connection has shown who it is; 0
	// means handshakeTimeout.
	handshake time.Duration
}

const (
	// DefaultPort is the port of an address that names none.
	DefaultPort = "7946"

	defaultProbeInterval  = 750 * time.Millisecond
	defaultProbeTimeout   = 400 * time.Millisecond
	defaultRejoinInterval = 5 * time.Second
)
