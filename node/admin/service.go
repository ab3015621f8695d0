// Package admin is the admin API of a node: its answers, its HTTP server and its Go client.
package admin

import (
	"context"
	"errors"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/doctor"
	"grapevine.example/raftstore"
)

// Service is what the server asks of a node; safe for concurrent use. RefusalOf answers its errors.
type Service interface {
	Status() *Status
	BackendList() *BackendList
	CatchUp(context.Context) error
	NodeList() *NodeList
	GossipStatus(facts bool) *GossipStatus // nil without a fleet; facts: scan all facts
	History(coarse bool, since time.Time) *History
	Receipts(id string) *ReceiptList // of one id, unless it is empty
	Doctor() *doctor.Report
	Clients() *ClientList
	Queue() *QueueStatus
	Rules() *RuleSet
	AgreedRules() (raftstore.Rules, error)
	Raft() (*RaftStatus, error)
	Prefixes() (*PrefixList, error)
	PrefixTree() *PrefixTree
	// Explain decides without sending or recording the request. header returns nil for absent
	// headers.
	Explain(path string, header func(name string) []byte, body []byte) (*Receipt, error)

	// AddBackends makes an entry whose URL ends in #ranks or #ranks=N a backend for each rank.
	AddBackends(ctx context.Context, list []NewBackend, force bool) (*Changed, error)
	UpdateBackend(ctx context.Context, c raftstore.UpdateBackend, force bool) (*Changed, error)
	SetBackendState(ctx context.Context, names []string, a raftstore.Action, reason string, force bool) (*Changed, error)
	RemoveBackends(ctx context.Context, names []string, force bool) (*Changed, error)
	SetRules(ctx context.Context, text string, ifVersion *uint64) (*Changed, error)
	SwitchPrefixes(ctx context.Context, on bool) (*Changed, error)
	TransferLeadership(ctx context.Context, to string) (*RaftStatus, error)
	ChangeKeys(ctx context.Context, op member.KeyOp, key []byte) (*KeyList, error)
}

var (
	ErrAlone       = errors.New("this node is not in a fleet: start it with --join or --gossip")
	ErrNotStarted  = errors.New("the node is starting")
	ErrNotProposed = errors.New("the configured backends could not be put to the fleet yet")
)

// KeysTimeout bounds a key operation over all nodes; a client must wait longer.
const KeysTimeout = 8 * time.Second

// NewBackend is a backend as an operator adds it; name defaults to host:port, weight to 1.
type NewBackend = raftstore.Backend
