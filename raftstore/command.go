package raftstore

import "errors"

// Command is a change of the state, applied or refused as a whole.
type Command interface {
	// validate runs before a command is proposed, so it may depend on the standard library's
	// version.
	validate() error
}

// The limits keep a snapshot of 2,000 ordinary backends below 1 MB.
const (
	MaxBackends      = 4096
	MaxNameBytes     = 128
	MaxURLBytes      = 512
	MaxReasonBytes   = 256
	MaxModels        = 64 // per backend
	MaxLabels        = 16 // per backend
	MaxLabelBytes    = 128
	MaxRulesBytes    = 256 << 10
	MaxHot           = 1024
	MaxCommandBytes  = 4 << 20
	MaxSnapshotBytes = 64 << 20
)

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

// AddBackends adds all backends or none. Weight 0 means 1. A name or URL in use is ErrExists.
type AddBackends struct{ Backends []Backend }

// UpdateBackend changes the fields that are not nil; a new URL raises the generation.
type UpdateBackend struct {
	Name string
	// Another version than *IfVersion is ErrConflict.
	IfVersion *uint64
	URL       *string
	Models    *[]string
	Weight    *float64
	KVTokens  *int64
	Role      *Role `since:"2"`
	// BootstrapPort of a backend of role both is ErrInvalid.
	BootstrapPort *uint16   `since:"2"`
	Labels        *[]string `since:"3"`
	Source        *Source
}

type Action uint8

// The actions are idempotent.
const (
	Drain Action = iota
	Resume
	MarkDown
	MarkUp
)

func (a Action) String() string { return nameOf(a, "drain", "resume", "down", "up") }

// SetBackendState acts on all backends, or on none if a name is unknown. See Author for what stays.
type SetBackendState struct {
	Names  []string
	Action Action
	Reason string
	By     Author // sources drain and resume, health marks down and up
	// If not empty, IfVersions has a Version per name; other versions stay unchanged.
	IfVersions []uint64
}

// NewGeneration raises a backend's generation after the loss of its KV cache.
type NewGeneration struct {
	Name string
	// Another generation than From is ErrConflict, as another node reported the restart; 0 matches
	// any.
	From uint32
}

// RemoveBackends removes all backends, or none if a name is unknown.
type RemoveBackends struct{ Names []string }

type SetRules struct {
	Text string
	// Another version than *IfVersion is ErrConflict.
	IfVersion *uint64
	Targets   bool `since:"3"` // see Rules
}

type HotChange struct {
	Anchor  uint64
	Remove  bool // an unknown anchor is no error
	Depth   uint32
	R       uint16
	Expires int64 // unix ms
}

type SetHot struct{ Changes []HotChange }

type SetSwitches struct{ Switches Switches }

// SetConstants works once; later, other constants are ErrConflict.
type SetConstants struct{ Constants Constants }
