package raftstore

import "errors"

// Command is a change of the state. The types that implement it are the ones of
// this package. A command is applied as a whole or refused as a whole.
type Command interface {
	// kind is the command's tag in the log.
	kind() commandKind
	// validate reports what is wrong with the command by itself, whatever the
	// state is, naming the place. It may depend on the version of the standard
	// library, so it runs before a command is proposed and never when the log is
	// applied.
	validate() error
}

// Limits of what a command may carry, and of what the state may grow to. They
// keep a snapshot of 2,000 ordinary backends below 1 MB.
const (
	MaxBackends      = 4096
	MaxNameBytes     = 128 // names of backends, models, clusters
	MaxURLBytes      = 512
	MaxReasonBytes   = 256
	MaxModels        = 64 // of one backend
	MaxRulesBytes    = 256 << 10
	MaxHot           = 1024
	MaxCommandBytes  = 4 << 20
	MaxSnapshotBytes = 64 << 20
)

// Errors of commands that the state machine refused. The error's text names the
// backend, field or version; errors.Is finds one of these in it.
var (
	ErrInvalid  = errors.New("invalid command")
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("changed meanwhile")
	ErrTooMany  = errors.New("too many")
)

// Result is what became of a command that was applied.
type Result struct {
	Index   uint64 // raft index at which it was applied
	Changed bool   // the state is another one because of it
}

// AddBackends adds all of the backends or none. Name, URL, Models, Weight (0
// means 1), KVTokens and Source are the caller's; the state machine sets the rest. A
// name or URL that is in use, or twice in the list, is ErrExists.
type AddBackends struct{ Backends []Backend }

// UpdateBackend changes the fields that are not nil. Another URL is another
// engine, so it raises the generation.
type UpdateBackend struct {
	Name string
	// IfVersion, if not nil, must be the backend's Version, else ErrConflict.
	IfVersion *uint64
	URL       *string
	Models    *[]string
	Weight    *float64
	KVTokens  *int64
	Source    *Source
}

// Action is what SetBackendState does.
type Action uint8

// The actions. Each is idempotent: what is so already is no error and no change.
const (
	Drain  Action = iota // an operator: no new sessions
	Resume               // an operator: end the drain
	MarkDown
	MarkUp
)

// String gives the action as it is written in errors and logs.
func (a Action) String() string { return nameOf(a, "drain", "resume", "down", "up") }

// SetBackendState takes one action on all of the backends, or on none if a name
// is unknown. What an operator has drained or taken down, sources and health do
// not end; what they have, an operator ends or takes over as the operator's own. What does
// not count for that reason changes nothing and is no error: who asked for it could not know.
type SetBackendState struct {
	Names  []string
	Action Action
	Reason string
	By     Author // sources drain and resume, health marks down and up, operators do all of it
	// IfVersions, if there are any, are one for each name: the Version that the
	// backend was judged by. One that has another by now is left as it is.
	IfVersions []uint64
}

// NewGeneration raises a backend's generation: what it held in its cache is gone.
type NewGeneration struct {
	Name string
	// From is the generation that has ended, so that several nodes that noticed
	// the same restart raise it once: a generation beyond it is ErrConflict. 0
	// raises whatever there is.
	From uint32
}

// RemoveBackends removes all of the backends, or none if a name is unknown.
type RemoveBackends struct{ Names []string }

// SetRules replaces the routing rules.
type SetRules struct {
	Text string
	// IfVersion, if not nil, must be the rules' Version, else ErrConflict. Rules
	// that were never set have version 0.
	IfVersion *uint64
}

// HotChange sets or removes one hot prefix.
type HotChange struct {
	Anchor  uint64
	Remove  bool // the other fields do not count then; an unknown anchor is no error
	Depth   uint32
	R       uint16 // at least 1
	Expires int64  // unix ms
}

// SetHot changes hot prefixes, all or none.
type SetHot struct{ Changes []HotChange }

// SetSwitches replaces the switches.
type SetSwitches struct{ Switches Switches }

// SetConstants fixes the constants. It works once; after that the same
// constants change nothing and others are ErrConflict.
type SetConstants struct{ Constants Constants }
