package raftstore

import "errors"

// Command is a change of the state, applied or refused as a whole.
type Command interface {
	kind() commandKind
	// validate checks the command alone, before it is proposed. It may depend on the standard
	// library's version, so the log's replay does not use it.
	validate() error
}

// Limits of commands and state, which keep a snapshot of 2,000 ordinary backends below 1 MB.
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

// Errors of the state machine. The text names the backend, field or version.
var (
	ErrInvalid  = errors.New("invalid command")
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("changed meanwhile")
	ErrTooMany  = errors.New("too many")
)

// Result is a command's outcome.
type Result struct {
	Index   uint64 // in raft's log
	Changed bool
}

// AddBackends adds all or none. The state machine sets the fields without JSON, except Source.
// Weight 0 means 1. A name or URL in use or given twice is ErrExists.
type AddBackends struct{ Backends []Backend }

// UpdateBackend changes the fields that are not nil. A new URL raises the generation.
type UpdateBackend struct {
	Name string
	// else ErrConflict
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

// SetBackendState takes one action on all backends, or on none if a name is unknown. Only an
// operator ends what an operator began; without that right an action changes nothing and is no
// error.
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
	// From is the generation that ended, else ErrConflict: several nodes may notice one restart. 0
	// always raises.
	From uint32
}

// RemoveBackends removes all backends, or none if a name is unknown.
type RemoveBackends struct{ Names []string }

// SetRules replaces the routing rules.
type SetRules struct {
	Text string
	// else ErrConflict; 0 before the first SetRules
	IfVersion *uint64
}

// HotChange sets or removes one hot prefix.
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
