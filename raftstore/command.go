package raftstore

import "errors"

// Command is a change of the state, applied or refused as a whole. Only types of this package
// implement it.
type Command interface {
	kind() commandKind
	// validate checks the command without the state. It may depend on the version of the standard
	// library, so it runs before a command is proposed, never when the log is applied.
	validate() error
}

// Limits of commands and of the state. They keep a snapshot of 2,000 ordinary backends below 1 MB.
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

// Errors of commands that the state machine refused, for errors.Is. The text names the backend,
// field or version.
var (
	ErrInvalid  = errors.New("invalid command")
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("changed meanwhile")
	ErrTooMany  = errors.New("too many")
)

// Result is the outcome of an applied command.
type Result struct {
	Index   uint64 // raft index of the entry
	Changed bool   // the command changed the state
}

// AddBackends adds all backends or none. The caller sets Name, URL, Models, Weight (0 means 1),
// KVTokens and Source; the state machine sets the rest. A name or URL in use, or given twice, is
// ErrExists.
type AddBackends struct{ Backends []Backend }

// UpdateBackend changes the fields that are not nil. A new URL means another engine, so it raises
// the generation.
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

// The actions are idempotent: an action without effect is no error and no change.
const (
	Drain  Action = iota // no new sessions
	Resume               // end the drain
	MarkDown
	MarkUp
)

// String returns the name used in errors and logs.
func (a Action) String() string { return nameOf(a, "drain", "resume", "down", "up") }

// SetBackendState takes one action on all backends, or on none if a name is unknown. Sources and
// health cannot end what an operator began; an operator can end or take over what they began. An
// action without that right changes nothing and is no error, because its sender cannot know.
type SetBackendState struct {
	Names  []string
	Action Action
	Reason string
	By     Author // sources drain and resume, health marks down and up, operators do all four
	// IfVersions is empty or holds, for each name, the Version that the sender judged. A backend
	// with another Version stays as it is.
	IfVersions []uint64
}

// NewGeneration raises a backend's generation because its KV cache is lost.
type NewGeneration struct {
	Name string
	// From is the generation that ended, so that several nodes that notice one restart raise it
	// once: if the backend has another generation, the result is ErrConflict. 0 always raises.
	From uint32
}

// RemoveBackends removes all backends, or none if a name is unknown.
type RemoveBackends struct{ Names []string }

// SetRules replaces the routing rules.
type SetRules struct {
	Text string
	// IfVersion, if not nil, must equal the rules' Version, else ErrConflict. Version is 0 before
	// the first SetRules.
	IfVersion *uint64
}

// HotChange sets or removes one hot prefix.
type HotChange struct {
	Anchor  uint64
	Remove  bool // ignores the other fields; an unknown anchor is no error
	Depth   uint32
	R       uint16 // at least 1
	Expires int64  // unix ms
}

// SetHot applies all changes of hot prefixes, or none.
type SetHot struct{ Changes []HotChange }

// SetSwitches replaces the switches.
type SetSwitches struct{ Switches Switches }

// SetConstants fixes the constants once. Later, equal constants change nothing and others are
// ErrConflict.
type SetConstants struct{ Constants Constants }
