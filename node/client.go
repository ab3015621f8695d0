package node

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
)

// Client calls a running router's admin API. Safe for concurrent use.
type Client struct {
	base             string
	token, tokenFile string // at most one of them
	force            bool   // see Forced
	http             *http.Client
}

// maxAdminAnswer fits thousands of backends.
const maxAdminAnswer = 64 << 20

// NewClient takes the admin API's host:port or URL.
func NewClient(addr string) *Client {
	if !strings.Contains(addr, "://") {
		if strings.HasPrefix(addr, ":") {
			addr = "127.0.0.1" + addr // as in serve's --admin
		}
		addr = "http://" + addr
	}
	return &Client{base: strings.TrimSuffix(addr, "/"), http: &http.Client{Transport: direct(), CheckRedirect: stay}}
}

// direct avoids web proxies, which would see tokens and keys.
func direct() *http.Transport {
	return &http.Transport{DisableKeepAlives: true} // mostly one request
}

// stay follows no redirects: the admin API has none.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

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

// Status returns the router's state.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	s := new(Status)
	return s, c.ask(ctx, http.MethodGet, "/status", nil, nil, s)
}

// Backends returns the router's backends.
func (c *Client) Backends(ctx context.Context) (*BackendList, error) {
	l := new(BackendList)
	return l, c.ask(ctx, http.MethodGet, "/backends", nil, nil, l)
}

// Explain returns the receipt that such a request would get; nothing is dispatched.
func (c *Client) Explain(ctx context.Context, path string, headers map[string]string, body []byte) (*Receipt, error) {
	r := new(Receipt)
	return r, c.ask(ctx, http.MethodPost, "/explain?path="+url.QueryEscape(path), headers, body, r)
}

// Nodes returns the fleet as the router sees it.
func (c *Client) Nodes(ctx context.Context) (*NodeList, error) {
	l := new(NodeList)
	return l, c.ask(ctx, http.MethodGet, "/nodes", nil, nil, l)
}

// Gossip returns the router's gossip counters.
func (c *Client) Gossip(ctx context.Context) (*GossipStatus, error) {
	s := new(GossipStatus)
	return s, c.ask(ctx, http.MethodGet, "/gossip", nil, nil, s)
}

// Keys returns the key ring of every node.
func (c *Client) Keys(ctx context.Context) (*KeyList, error) {
	l := new(KeyList)
	return l, c.ask(ctx, http.MethodGet, "/keys", nil, nil, l)
}

// InstallKey makes every node accept a key.
func (c *Client) InstallKey(ctx context.Context, key []byte) (*KeyList, error) {
	return c.changeKeys(ctx, "install", keyRequest{Key: base64.StdEncoding.EncodeToString(key)})
}

// UseKey makes every node encrypt with an installed key.
func (c *Client) UseKey(ctx context.Context, id string) (*KeyList, error) {
	return c.changeKeys(ctx, "use", keyRequest{ID: id})
}

// RemoveKey makes every node forget an unused key.
func (c *Client) RemoveKey(ctx context.Context, id string) (*KeyList, error) {
	return c.changeKeys(ctx, "remove", keyRequest{ID: id})
}

func (c *Client) changeKeys(ctx context.Context, op string, q keyRequest) (*KeyList, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	l := new(KeyList)
	return l, c.ask(ctx, http.MethodPost, "/keys/"+op, map[string]string{"Content-Type": "application/json"}, body, l)
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
			e.status = resp.StatusCode
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
