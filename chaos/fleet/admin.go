package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"grapevine.example/node/admin"
)

// maxAnswer is in bytes.
const maxAnswer = 64 << 20

// GossipFacts is Gossip with the digest of the node's tree, which scans the whole tree.
func (n *Node) GossipFacts(ctx context.Context) (*admin.GossipStatus, error) {
	text, err := n.get(ctx, n.admin, "/gossip?facts=1")
	if err != nil {
		return nil, err
	}
	var s admin.GossipStatus
	if err := json.Unmarshal(text, &s); err != nil || s.Facts == nil {
		return nil, fmt.Errorf("%s: no digest of facts in %.100q", n.name, text)
	}
	return &s, nil
}

// Metrics are by plain name, summed over all label sets (histograms: name_sum, name_count,
// name_bucket).
type Metrics map[string]float64

func (n *Node) Metrics(ctx context.Context) (Metrics, error) {
	text, err := n.get(ctx, n.admin, "/metrics")
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

// Get fails without the metric, so that a renamed one does not read as zero.
func (m Metrics) Get(name string) (float64, error) {
	v, ok := m[name]
	if !ok {
		return 0, fmt.Errorf("no such metric: %s", name)
	}
	return v, nil
}

// Ready asks the node over a new connection.
func (n *Node) Ready(ctx context.Context) error {
	_, err := n.get(ctx, n.data, "/readyz")
	return err
}

func (n *Node) get(ctx context.Context, addr, path string) ([]byte, error) {
	status, text, err := n.call(ctx, http.MethodGet, addr, path, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", path, status, bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	return text, n.named(err)
}

// Call sends a JSON body, unless nil, to the admin API.
func (n *Node) Call(ctx context.Context, method, path string, body any) (int, []byte, error) {
	return n.call(ctx, method, n.admin, path, body)
}

func (n *Node) call(ctx context.Context, method, addr, path string, body any) (int, []byte, error) {
	var raw []byte
	var err error
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if n.token != "" {
		req.Header.Set("Authorization", "Bearer "+n.token)
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, text, err
}
