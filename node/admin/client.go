package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"grapevine.example/node/doctor"
)

// Client calls a running router's admin API. Safe for concurrent use.
type Client struct {
	base             string
	token, tokenFile string // at most one of them
	force            bool   // see Forced
	http             *http.Client
}

const maxAdminAnswer = 64 << 20

// NewClient takes the admin API's host:port or URL.
func NewClient(addr string) *Client {
	if !strings.Contains(addr, "://") {
		if strings.HasPrefix(addr, ":") {
			addr = "127.0.0.1" + addr // as in serve's --admin
		}
		addr = "http://" + addr
	}
	return &Client{base: strings.TrimSuffix(addr, "/"), http: &http.Client{
		// No proxy of the environment: it would see tokens, keys and rules.
		Transport:     &http.Transport{DisableKeepAlives: true}, // mostly one request
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// WithToken returns a client that sends token or, if empty, the file's.
func (c *Client) WithToken(token, file string) *Client {
	return &Client{base: c.base, token: token, tokenFile: file, force: c.force, http: c.http}
}

// Forced returns a client that may take the last active engines of the fleet, or of a model, out of
// service.
func (c *Client) Forced() *Client {
	forced := *c
	forced.force = true
	return &forced
}

func (c *Client) Status(ctx context.Context) (*Status, error) { return get[Status](ctx, c, "/status") }

func (c *Client) Nodes(ctx context.Context) (*NodeList, error) {
	return get[NodeList](ctx, c, "/nodes")
}

func (c *Client) Gossip(ctx context.Context) (*GossipStatus, error) {
	return get[GossipStatus](ctx, c, "/gossip")
}

// Explain returns the decision for a request without sending it.
func (c *Client) Explain(ctx context.Context, path string, headers map[string]string, body []byte) (*Receipt, error) {
	return call[Receipt](ctx, c, http.MethodPost, "/explain?path="+url.QueryEscape(path), headers, body)
}

func (c *Client) Backends(ctx context.Context) (*BackendList, error) {
	return get[BackendList](ctx, c, "/backends")
}

// CurrentBackends includes every change confirmed before on any node.
func (c *Client) CurrentBackends(ctx context.Context) (*BackendList, error) {
	return get[BackendList](ctx, c, "/backends?consistent=true")
}

// AddBackends adds all backends or none. Unless force is set, their engines must answer.
func (c *Client) AddBackends(ctx context.Context, backends []NewBackend, force bool) (*Changed, error) {
	return send[Changed](ctx, c, http.MethodPost, with("/backends", "force", force), map[string]any{"backends": backends})
}

// SetBackendState changes all backends or none; action is drain, resume, down or up.
func (c *Client) SetBackendState(ctx context.Context, names []string, action, reason string) (*Changed, error) {
	return send[Changed](ctx, c, http.MethodPatch, with("/backends", "force", c.force), stateChange{Names: names, Action: action, Reason: reason})
}

// SetLabels replaces the labels of a backend.
func (c *Client) SetLabels(ctx context.Context, name string, labels []string) (*Changed, error) {
	return send[Changed](ctx, c, http.MethodPatch, "/backends/"+url.PathEscape(name), backendUpdate{Labels: &labels})
}

// RemoveBackends removes all backends or none.
func (c *Client) RemoveBackends(ctx context.Context, names []string) (*Changed, error) {
	query := url.Values{"name": names}
	if c.force {
		query.Set("force", "true")
	}
	return call[Changed](ctx, c, http.MethodDelete, "/backends?"+query.Encode(), nil, nil)
}

func (c *Client) Clients(ctx context.Context) (*ClientList, error) {
	return get[ClientList](ctx, c, "/clients")
}

// Queue tells what waits at the node.
func (c *Client) Queue(ctx context.Context) (*QueueStatus, error) {
	return get[QueueStatus](ctx, c, "/queue")
}

func (c *Client) Rules(ctx context.Context) (*RuleSet, error) { return get[RuleSet](ctx, c, "/rules") }

// ApplyRules replaces the fleet's rules, of version ifVersion unless nil, or, if dry, returns the
// change.
func (c *Client) ApplyRules(ctx context.Context, text string, ifVersion *uint64, dry bool) (*RuleChange, error) {
	return send[RuleChange](ctx, c, http.MethodPut, with("/rules", "dry_run", dry), rulesRequest{Text: text, IfVersion: ifVersion})
}

func (c *Client) Raft(ctx context.Context) (*RaftStatus, error) {
	return get[RaftStatus](ctx, c, "/raft")
}

// TransferLeadership makes a voter (name or raft id) the leader; "" is the most advanced one.
func (c *Client) TransferLeadership(ctx context.Context, to string) (*RaftStatus, error) {
	return send[RaftStatus](ctx, c, http.MethodPost, "/raft/transfer", transferRequest{To: to})
}

// Doctor returns the diagnosis of the prompts.
func (c *Client) Doctor(ctx context.Context) (*doctor.Report, error) {
	return get[doctor.Report](ctx, c, "/doctor")
}

func (c *Client) Prefixes(ctx context.Context) (*PrefixList, error) {
	return get[PrefixList](ctx, c, "/prefixes")
}

func (c *Client) SwitchPrefixes(ctx context.Context, on bool) (*Changed, error) {
	return send[Changed](ctx, c, http.MethodPatch, "/prefixes", switches{Enabled: &on})
}

// Keys returns the key ring of every node.
func (c *Client) Keys(ctx context.Context) (*KeyList, error) { return get[KeyList](ctx, c, "/keys") }

func (c *Client) InstallKey(ctx context.Context, key []byte) (*KeyList, error) {
	return send[KeyList](ctx, c, http.MethodPost, "/keys/install", keyRequest{Key: base64.StdEncoding.EncodeToString(key)})
}

func (c *Client) UseKey(ctx context.Context, id string) (*KeyList, error) {
	return send[KeyList](ctx, c, http.MethodPost, "/keys/use", keyRequest{ID: id})
}

func (c *Client) RemoveKey(ctx context.Context, id string) (*KeyList, error) {
	return send[KeyList](ctx, c, http.MethodPost, "/keys/remove", keyRequest{ID: id})
}

func with(path, option string, on bool) string {
	if on {
		return path + "?" + option + "=true"
	}
	return path
}

func get[T any](ctx context.Context, c *Client, path string) (*T, error) {
	return call[T](ctx, c, http.MethodGet, path, nil, nil)
}

func send[T any](ctx context.Context, c *Client, method, path string, body any) (*T, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	return call[T](ctx, c, method, path, map[string]string{"Content-Type": "application/json"}, text)
}

func call[T any](ctx context.Context, c *Client, method, path string, headers map[string]string, body []byte) (*T, error) {
	v := new(T)
	return v, c.ask(ctx, method, path, headers, body, v)
}

func (c *Client) ask(ctx context.Context, method, path string, headers map[string]string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("admin API: %w", err)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	token := c.token
	if token == "" && c.tokenFile != "" {
		if token, err = ReadToken(c.tokenFile); err != nil {
			return err
		}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return unanswered(method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminAnswer))
	if err != nil {
		return unanswered(method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		e := new(Refusal)
		if json.Unmarshal(text, e) == nil && e.Reason != "" {
			e.Status = resp.StatusCode
			return fmt.Errorf("admin API: %w", e)
		}
		return fmt.Errorf("admin API: %s: %s", c.base+path, resp.Status)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("admin API: %s is not the admin API of a grapevine: %w", c.base, err)
	}
	return nil
}

// unanswered warns that a change may have happened, unless the connection failed.
func unanswered(method, path string, err error) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("admin API: %w (is the router running, and is this its admin address?)", err)
	case method == http.MethodGet, strings.HasPrefix(path, "/explain"):
		return fmt.Errorf("admin API: %w", err)
	}
	return fmt.Errorf("admin API: %w: outcome unknown: look whether it was done; doing it again does no harm", err)
}
