package raftstore

import (
	"slices"
	"strings"
)

// State is one version of what the fleet has agreed on. It is immutable:
// whoever holds one may read it from any goroutine for as long as it likes, and
// must not write to its slices.
type State struct {
	// Version is the raft index of the command that made this state; 0 before
	// the first. It only grows.
	Version uint64
	// Constants are the zero value until the first leader has committed its own.
	Constants Constants
	// Backends is sorted by Name.
	Backends []Backend
	Rules    Rules
	// Hot is sorted by Anchor.
	Hot      []HotPrefix
	Switches Switches
}

// Constants must be equal on every node of a fleet: placements of nodes that
// differ in one of them would mean different things.
type Constants struct {
	KeyID      uint32 // names the secret of the block hashes
	BlockBytes uint32 // prompt bytes in one block
	Cluster    string // name of the fleet
}

// Backend is one inference engine that requests may be sent to. Its JSON is how an
// operator adds one: what the state machine sets is not in it.
type Backend struct {
	Name     string   `json:"name,omitempty"`      // unique, at most 128 bytes
	URL      string   `json:"url"`                 // unique, as NormalURL gives it
	Models   []string `json:"models,omitempty"`    // none: the engine is asked
	Weight   float64  `json:"weight,omitempty"`    // relative share of the load, above 0
	KVTokens int64    `json:"kv_tokens,omitempty"` // size of the KV cache in tokens; 0 is unknown, and the engine is asked
	Source   Source   `json:"-"`

	// Generation fences what is known of a backend's cache: it grows when the
	// engine was restarted and when its URL changes, and is higher than before when a
	// name is added again.
	Generation uint32       `json:"-"`
	State      BackendState `json:"-"`
	// Drained says that somebody asked for the drain. It is remembered while the
	// backend is down, so that one that comes back is not put to work again.
	Drained   bool   `json:"-"`
	DrainedBy Author `json:"-"` // ByOperator if not drained
	DownBy    Author `json:"-"` // ByOperator if not down
	Since     int64  `json:"-"` // when State was entered, unix ms
	Reason    string `json:"-"` // of the last change of State, or the operator's who took it over
	Version   uint64 `json:"-"` // raft index of the last change of this backend
}

// Author is on whose word a backend is drained or down.
type Author uint8

// The authors. An operator's word ends by an operator's word alone; the others end
// theirs by themselves.
const (
	ByOperator Author = iota
	BySource          // no source names it any more
	ByHealth          // most of those who ask it say that it fails
)

// String gives the author as it is written in logs.
func (a Author) String() string { return nameOf(a, "operator", "source", "health") }

// BackendState is whether a backend takes requests.
type BackendState uint8

// The states of a backend. Down wins over draining.
const (
	Active   BackendState = iota // takes requests
	Draining                     // takes no new sessions
	Down                         // takes nothing
)

// String gives the state as it is written in JSON and tables.
func (s BackendState) String() string {
	return nameOf(s, "active", "draining", "down")
}

// Source is where a backend was learned of.
type Source uint8

// The sources of backends.
const (
	Static Source = iota // named in the configuration
	File                 // listed in a watched file
	DNS                  // an address of a DNS name
	Admin                // added by an operator
)

// String gives the source as it is written in JSON and tables.
func (s Source) String() string { return nameOf(s, "static", "file", "dns", "admin") }

// nameOf is the name of a small enumeration's value.
func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// Rules are the routing rules as an operator wrote them. Their meaning is the
// caller's: it validates the text before it proposes it.
type Rules struct {
	Text    string // YAML, at most MaxRulesBytes
	Version uint64 // raft index of the last change; 0 before the first
}

// HotPrefix is a prefix that several backends hold on purpose. Which ones is
// computed from Anchor and R by whoever routes, not stored.
type HotPrefix struct {
	Anchor     uint64 // block hash that names the prefix
	Depth      uint32 // tokens of prompt up to the anchor
	R          uint16 // how many backends hold it
	Expires    int64  // unix ms
	Since      int64  // when it became hot, unix ms
	LastChange int64  // when R last changed, unix ms
}

// Switches turn whole features off for the fleet.
type Switches struct {
	Hot bool // hot prefixes are replicated; true until switched off
}

// Backend looks a backend up by name.
func (s *State) Backend(name string) (Backend, bool) {
	i, found := slices.BinarySearchFunc(s.Backends, name, func(b Backend, name string) int {
		return strings.Compare(b.Name, name)
	})
	if !found {
		return Backend{}, false
	}
	return s.Backends[i], true
}
