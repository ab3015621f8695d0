package member

import (
	"context"
	"errors"
	"net"
	"time"
)

var errSkeleton = errors.New("not built yet")

const maxKeys = 8

// Fingerprint names a key without telling it.
type Fingerprint [8]byte

type resolver interface{}

// Conn is a stream to another node, after TLS and hello.
type Conn struct {
	net.Conn
	Peer Info
}

// KeyOp is an operation on the keyrings of the fleet.
type KeyOp uint8

// Operations on keyrings.
const (
	KeyList KeyOp = iota + 1
	KeyInstall
	KeyUse
	KeyRemove
)

// KeyInfo is a key on a node's ring.
type KeyInfo struct {
	Fingerprint Fingerprint
	Primary     bool
}

// KeyResult is one member's answer to a key operation.
type KeyResult struct {
	Member    Info
	Keys      []KeyInfo
	Persisted bool
	Err       error
}

// List is this node's membership in a fleet.
type List struct{}

func New(cfg Config) (*List, error)                                { return nil, errSkeleton }
func (l *List) Start(ctx context.Context) error                    { return errSkeleton }
func (l *List) Leave(timeout time.Duration) error                  { return errSkeleton }
func (l *List) Stop(ctx context.Context) error                     { return errSkeleton }
func (l *List) Self() Info                                         { return Info{} }
func (l *List) Members() []Status                                  { return nil }
func (l *List) Dial(ctx context.Context, peer Info) (*Conn, error) { return nil, errSkeleton }
func (l *List) JoinErrors() []SeedError                            { return nil }
func (l *List) Joined() bool                                       { return false }
func (l *List) Refusals() []Refusal                                { return nil }
func (l *List) Keys() []KeyInfo                                    { return nil }
func (l *List) RotateKey(ctx context.Context, op KeyOp, key []byte) ([]KeyResult, error) {
	return nil, errSkeleton
}
