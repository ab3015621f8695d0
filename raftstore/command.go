package raftstore

import "errors"

// Command is a change of the state, applied or refused as a whole.
type Command interface {
	// validate runs only before a command is proposed, because it may depend on the standard
	// library's version.
	validate() error
}

// The limits keep a snapshot of 2,000 ordinary backends below 1 MB.
const (
	MaxBackends      = 4096
	MaxNameBytes     = 128
	MaxURLBytes      = 512
	MaxReasonBytes   = 256
	MaxModels        = 64 // per backend
	MaxRulesBytes    = 256 << 10
	MaxHot           = 1024
	MaxCommandBytes  = 4 << 20
	MaxSnapshotBytes = 64 << 20
)

// Errors of the state machine.
var (
	ErrInvalid  = errors.New("invalid command")
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("changed meanwhile")
	ErrTooMany  = errors.New("too many")
)

type Result struct {
	Index   uint64
	Changed bool
}

// AddBackends adds all backends or none. The state machine sets generation, state and version.
// Weight 0 means 1. A name or URL in use or given twice is ErrExists.
type AddBackends struct{ Backends []Backend }

// UpdateBackend changes the fields that are not nil. A new URL raises the generation.
type UpdateBackend struct {
	Name string
	// IfVersion, if not nil, must equal the backend's Version, else ErrConflict.
	IfVersion *uint64
	URL       *string
	Models    *[]string
	Weight    *float64
	KVTokens  *int64
	Source    *Source
}

// Action is what SetBackendState does.
type Action uint8

// The actions are idempotent.
const (
	Drain Action = iota
	Resume
	MarkDown
	MarkUp
)

func (a Action) String() string { return nameOf(a, "drain", "resume", "down", "up") }

// SetBackendState acts on all backends, or on none if a name is unknown. What the author may not
// end (see Author) stays, without an error.
type SetBackendState struct {
	Names  []string
	Action Action
	Reason string
	By     Author // sources drain and resume, health marks down and up
	// IfVersions is empty or has a Version per name; backends with another Version stay unchanged.
	IfVersions []uint64
}

// NewGeneration raises a backend's generation after the loss of its KV cache.
type NewGeneration struct {
	Name string
	// From is the generation that ended; 0 matches any. Another one is ErrConflict, because another
	// node has reported the same restart.
	From uint32
}

// RemoveBackends removes all, or none if a name is unknown.
type RemoveBackends struct{ Names []string }

type SetRules struct {
	Text string
	// IfVersion, if not nil, must equal the rules' Version, else ErrConflict.
	IfVersion *uint64
}

type HotChange struct {
	Anchor  uint64
	Remove  bool // an unknown anchor is no error
	Depth   uint32
	R       uint16
	Expires int64 // unix ms
}

// SetHot applies all changes or none.
type SetHot struct{ Changes []HotChange }

type SetSwitches struct{ Switches Switches }

// SetConstants works once; then other constants are ErrConflict.
type SetConstants struct{ Constants Constants }
