package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// AddBackends adds all backends or none. Unless force is set, their engines must answer.
func (c *Client) AddBackends(ctx context.Context, backends []NewBackend, force bool) (*Changed, error) {
	path := "/backends"
	if force {
		path += "?force=true"
	}
	return send[Changed](ctx, c, http.MethodPost, path, struct {
		Backends []NewBackend `json:"backends"`
	}{backends})
}

// SetBackendState changes all backends or none; action is drain, resume, down or up. Only a Forced
// client may leave the fleet or a model without an active engine.
func (c *Client) SetBackendState(ctx context.Context, names []string, action, reason string) (*Changed, error) {
	path := "/backends"
	if c.force {
		path += "?force=true"
	}
	return send[Changed](ctx, c, http.MethodPatch, path, stateChange{Names: names, Action: action, Reason: reason})
}

// RemoveBackends removes all backends or none. Only a Forced client may leave the fleet or a model
// without an active engine.
func (c *Client) RemoveBackends(ctx context.Context, names []string) (*Changed, error) {
	query := url.Values{"name": names}
	if c.force {
		query.Set("force", "true")
	}
	done := new(Changed)
	return done, c.ask(ctx, http.MethodDelete, "/backends?"+query.Encode(), nil, nil, done)
}

// CurrentBackends is Backends with every change confirmed before on any node.
func (c *Client) CurrentBackends(ctx context.Context) (*BackendList, error) {
	l := new(BackendList)
	return l, c.ask(ctx, http.MethodGet, "/backends?consistent=true", nil, nil, l)
}

// Rules returns the routing rules in force on the router.
func (c *Client) Rules(ctx context.Context) (*RuleSet, error) {
	r := new(RuleSet)
	return r, c.ask(ctx, http.MethodGet, "/rules", nil, nil, r)
}

// ApplyRules replaces the fleet's rules or, if dry, returns the change. ifVersion, if not nil, is
// the version to replace.
func (c *Client) ApplyRules(ctx context.Context, text string, ifVersion *uint64, dry bool) (*RuleChange, error) {
	path := "/rules"
	if dry {
		path += "?dry_run=true"
	}
	return send[RuleChange](ctx, c, http.MethodPut, path, rulesRequest{Text: text, IfVersion: ifVersion})
}

// Raft returns the raft group as the router sees it.
func (c *Client) Raft(ctx context.Context) (*RaftStatus, error) {
	s := new(RaftStatus)
	return s, c.ask(ctx, http.MethodGet, "/raft", nil, nil, s)
}

// TransferLeadership makes a voter (name or raft id) the leader; "" is the most advanced one.
func (c *Client) TransferLeadership(ctx context.Context, to string) (*RaftStatus, error) {
	return send[RaftStatus](ctx, c, http.MethodPost, "/raft/transfer", transferRequest{To: to})
}

func (c *Client) Prefixes(ctx context.Context) (*PrefixList, error) {
	l := new(PrefixList)
	return l, c.ask(ctx, http.MethodGet, "/prefixes", nil, nil, l)
}

// SwitchPrefixes turns hot prefix replication on or off for the fleet.
func (c *Client) SwitchPrefixes(ctx context.Context, on bool) (*Changed, error) {
	return send[Changed](ctx, c, http.MethodPatch, "/prefixes", struct {
		Enabled bool `json:"enabled"`
	}{on})
}

func send[T any](ctx context.Context, c *Client, method, path string, body any) (*T, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	out := new(T)
	return out, c.ask(ctx, method, path, map[string]string{"Content-Type": "application/json"}, text, out)
}
