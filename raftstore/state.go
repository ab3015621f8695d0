package raftstore

import (
	"fmt"
	"slices"
	"strings"
)

// State is one version of what the fleet agreed on, immutable.
type State struct {
	// Version is the raft index of the last change.
	Version   uint64
	Constants Constants
	// sorted by Name
	Backends []Backend
	Rules    Rules
	// sorted by Anchor
	Hot      []HotPrefix
	Switches Switches
}

// Constants must be equal on every node, because block hashes depend on them.
type Constants struct {
	KeyID      uint32 // identifies the secret of the block hashes
	BlockBytes uint32 // prompt bytes per block
	Cluster    string
}

func (c Constants) String() string {
	return fmt.Sprintf("cluster %q, block bytes %d, key id %08x", c.Cluster, c.BlockBytes, c.KeyID)
}

// Backend is one inference engine, or one data-parallel rank of it; its JSON holds what an operator sets.
type Backend struct {
	Name     string   `json:"name,omitempty"`      // unique
	URL      string   `json:"url"`                 // unique, see NormalURL
	Models   []string `json:"models,omitempty"`    // empty: the engine is asked
	Weight   float64  `json:"weight,omitempty"`    // share of the load, above 0
	KVTokens int64    `json:"kv_tokens,omitempty"` // tokens; 0: the engine is asked
	Role     Role     `json:"role,omitempty" since:"2"`
	// BootstrapPort, if not 0, makes a prefill or decode engine SGLang's: the port at which decode
	// engines ask a prefill engine for its KV cache.
	BootstrapPort uint16 `json:"bootstrap_port,omitempty" since:"2"`
	// Labels are NAME=VALUE, sorted, a name once.
	Labels []string `json:"labels,omitempty" since:"3"`
	Source Source   `json:"-"`

	// Generation separates KV caches: it grows with each restart and new URL, and a removed name
	// returns with a higher one.
	Generation uint32       `json:"-"`
	State      BackendState `json:"-"`
	// Drained is kept while the backend is down.
	Drained   bool   `json:"-"`
	DrainedBy Author `json:"-"`
	DownBy    Author `json:"-"`
	Since     int64  `json:"-"` // last change of State, unix ms
	Reason    string `json:"-"`
	Version   uint64 `json:"-"` // raft index of the last change
}

// Role says which part of a request an engine computes.
type Role uint8

const (
	Both    Role = iota // whole requests
	Prefill             // prompts, whose KV cache a decode engine fetches
	Decode              // replies to prompts that a prefill engine computed; also whole requests, except SGLang's
)

func (r Role) String() string { return nameOf(r, "both", "prefill", "decode") }

func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads both, prefill or decode.
func (r *Role) UnmarshalText(text []byte) error {
	for known := Both; known <= Decode; known++ {
		if string(text) == known.String() {
			*r = known
			return nil
		}
	}
	return fmt.Errorf("role %q is unknown: write both, prefill or decode", text)
}

type Author uint8

// Operators end what any author began, other authors only their own.
const (
	ByOperator Author = iota
	BySource          // no source names the backend
	ByHealth          // most nodes that probe it report failures
)

func (a Author) String() string { return nameOf(a, "operator", "source", "health") }

type BackendState uint8

// Down hides Draining.
const (
	Active BackendState = iota
	Draining
	Down
)

func (s BackendState) String() string {
	return nameOf(s, "active", "draining", "down")
}

type Source uint8

const (
	Static Source = iota
	File          // from a watched file
	DNS
	Admin // from an operator
)

func (s Source) String() string { return nameOf(s, "static", "file", "dns", "admin") }

const noName = "unknown"

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return noName
}

type Rules struct {
	Text    string // YAML
	Version uint64 // raft index of the last change
	// Targets: the text has more than strategies, and programs that know only these must not read it.
	Targets bool `since:"3"`
}

// HotPrefix is a prefix that R backends hold on purpose.
type HotPrefix struct {
	Anchor     uint64
	Depth      uint32 // prompt tokens up to the anchor
	R          uint16
	Expires    int64 // unix ms
	Since      int64 // unix ms
	LastChange int64 // when R changed, unix ms
}

type Switches struct {
	Hot bool // replicate hot prefixes; initially true
}

func (s *State) Backend(name string) (Backend, bool) {
	if i, found := findBackend(s.Backends, name); found {
		return s.Backends[i], true
	}
	return Backend{}, false
}

func findBackend(list []Backend, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(b Backend, name string) int { return strings.Compare(b.Name, name) })
}
