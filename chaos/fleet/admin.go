package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"grapevine/node"
)

// maxAnswer bounds an answer of an admin API, in bytes.
const maxAnswer = 64 << 20

// ErrNoMetric is returned for a metric that a node does not export.
var ErrNoMetric = errors.New("no such metric")

// Client returns a client of the node's admin API with all rights.
func (n *Node) Client() *node.Client { return node.NewClient(n.admin).WithToken(n.token, "") }

// Ask sends a request to the node's admin API and decodes the JSON answer into into, or drops it if
// nil. A status other than 200 is an error.
func (n *Node) Ask(ctx context.Context, method, path string, body []byte, into any) error {
	text, err := n.fetch(ctx, method, "http://"+n.admin+path, body)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %s: %w", n.name, path, err)
	}
	return nil
}

// Status returns the node's status.
func (n *Node) Status(ctx context.Context) (*node.Status, error) {
	s := new(node.Status)
	return s, n.Ask(ctx, http.MethodGet, "/status", nil, s)
}

// Explain returns where the node would send a request with that path and body now. Nothing is sent
// or recorded.
func (n *Node) Explain(ctx context.Context, path string, body []byte) (*node.Receipt, error) {
	r := new(node.Receipt)
	return r, n.Ask(ctx, http.MethodPost, "/explain?path="+url.QueryEscape(path), body, r)
}

// Gossip returns the counters of the node's gossip.
func (n *Node) Gossip(ctx context.Context) (*node.GossipStatus, error) {
	s := new(node.GossipStatus)
	return s, n.Ask(ctx, http.MethodGet, "/gossip", nil, s)
}

// Facts returns the digest of the node's tree. The node scans the whole tree for it.
func (n *Node) Facts(ctx context.Context) (*node.FactsStatus, error) {
	var s node.GossipStatus
	if err := n.Ask(ctx, http.MethodGet, "/gossip?facts=1", nil, &s); err != nil {
		return nil, err
	}
	if s.Facts == nil {
		return nil, fmt.Errorf("%s: no digest of facts", n.name)
	}
	return s.Facts, nil
}

// Fleet returns the fleet as the node sees it.
func (n *Node) Fleet(ctx context.Context) (*node.NodeList, error) {
	l := new(node.NodeList)
	return l, n.Ask(ctx, http.MethodGet, "/nodes", nil, l)
}

// Raft returns the raft group as the node sees it.
func (n *Node) Raft(ctx context.Context) (*node.RaftStatus, error) {
	s := new(node.RaftStatus)
	return s, n.Ask(ctx, http.MethodGet, "/raft", nil, s)
}

// Metrics returns the node's metrics, summed over all label sets by plain name (histograms:
// name_sum, name_count, name_bucket).
func (n *Node) Metrics(ctx context.Context) (Metrics, error) {
	text, err := n.fetch(ctx, http.MethodGet, "http://"+n.admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	m := make(Metrics)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if at < 0 || err != nil {
			return nil, fmt.Errorf("%s: metric %q", n.name, line)
		}
		name, _, _ := strings.Cut(line[:at], "{")
		m[name] += v
	}
	return m, nil
}

type Metrics map[string]float64

// Get returns a metric's value or ErrNoMetric, so that a renamed metric does not read as zero.
func (m Metrics) Get(name string) (float64, error) {
	v, ok := m[name]
	if !ok {
		return 0, fmt.Errorf("%w: %s", ErrNoMetric, name)
	}
	return v, nil
}

func (n *Node) ready(ctx context.Context) error {
	_, err := n.fetch(ctx, http.MethodGet, "http://"+n.data+"/readyz", nil)
	return err
}

// Authorize adds an operator's credentials to a request to the admin API.
func (n *Node) Authorize(req *http.Request) {
	if n.token != "" {
		req.Header.Set("Authorization", "Bearer "+n.token)
	}
}

func (n *Node) fetch(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	n.Authorize(req)
	resp, err := n.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s %s: %s: %s", n.name, method, url, resp.Status, bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	return text, nil
}
