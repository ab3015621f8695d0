package raftstore

import (
	"slices"
	"strings"
)

// State is one version of what the fleet has agreed on. It is immutable and safe for concurrent
// use; callers must not write to its slices.
type State struct {
	// Version is the raft index of the command that made this state; 0 before the first. It only
	// grows.
	Version uint64
	// Constants are zero until the first leader has committed its own.
	Constants Constants
	// sorted by Name
	Backends []Backend
	Rules    Rules
	// sorted by Anchor
	Hot      []HotPrefix
	Switches Switches
}

// Constants must be equal on every node, because they give placements their meaning.
type Constants struct {
	KeyID      uint32 // names the secret of the block hashes
	BlockBytes uint32 // prompt bytes per block
	Cluster    string // name of the fleet
}

// Backend is one inference engine. Its JSON holds what an operator sets when adding one.
type Backend struct {
	Name     string   `json:"name,omitempty"`      // unique, at most 128 bytes
	URL      string   `json:"url"`                 // unique, in the form of NormalURL
	Models   []string `json:"models,omitempty"`    // empty: the engine is asked
	Weight   float64  `json:"weight,omitempty"`    // relative share of the load, above 0
	KVTokens int64    `json:"kv_tokens,omitempty"` // capacity of the KV cache in tokens; 0 is unknown: the engine is asked
	Source   Source   `json:"-"`

	// Generation fences knowledge of the KV cache. It grows when the engine restarts and when the
	// URL changes; a name that is added again starts higher than before.
	Generation uint32       `json:"-"`
	State      BackendState `json:"-"`
	// Drained is kept while the backend is down, so that it does not take sessions on recovery.
	Drained   bool   `json:"-"`
	DrainedBy Author `json:"-"` // ByOperator if not drained
	DownBy    Author `json:"-"` // ByOperator if not down
	Since     int64  `json:"-"` // when State last changed, unix ms
	Reason    string `json:"-"` // of the last change of State, or of the operator who took it over
	Version   uint64 `json:"-"` // raft index of the last change of this backend
}

// Author says who drained a backend or marked it down.
type Author uint8

// The authors. Only an operator ends what an operator began; an operator can also end what the
// other authors began.
const (
	ByOperator Author = iota
	BySource          // no source names the backend any more
	ByHealth          // most nodes that probe the backend report a failure
)

// String returns the name used in logs.
func (a Author) String() string { return nameOf(a, "operator", "source", "health") }

// BackendState says whether a backend takes requests.
type BackendState uint8

// The states of a backend. Down takes precedence over Draining.
const (
	Active   BackendState = iota // takes requests
	Draining                     // no new sessions
	Down                         // no requests
)

// String returns the name used in JSON and tables.
func (s BackendState) String() string {
	return nameOf(s, "active", "draining", "down")
}

// Source says how the fleet learned of a backend.
type Source uint8

// The sources of backends.
const (
	Static Source = iota // named in the configuration
	File                 // listed in a watched file
	DNS                  // an address of a DNS name
	Admin                // added by an operator
)

// String returns the name used in JSON and tables.
func (s Source) String() string { return nameOf(s, "static", "file", "dns", "admin") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// Rules are the routing rules as an operator wrote them. Callers validate the text before they
// propose it; the store does not parse it.
type Rules struct {
	Text    string // YAML, at most MaxRulesBytes
	Version uint64 // raft index of the last change; 0 before the first
}

// HotPrefix is a prefix that R backends hold on purpose. Routers compute which ones from Anchor and
// R.
type HotPrefix struct {
	Anchor     uint64 // block hash that identifies the prefix
	Depth      uint32 // prompt tokens up to the anchor
	R          uint16 // number of backends that hold it
	Expires    int64  // unix ms
	Since      int64  // when it became hot, unix ms
	LastChange int64  // when R last changed, unix ms
}

// Switches turn features off for the whole fleet.
type Switches struct {
	Hot bool // replicate hot prefixes; initially true
}

// Backend finds a backend by name.
func (s *State) Backend(name string) (Backend, bool) {
	i, found := slices.BinarySearchFunc(s.Backends, name, func(b Backend, name string) int {
		return strings.Compare(b.Name, name)
	})
	if !found {
		return Backend{}, false
	}
	return s.Backends[i], true
}
