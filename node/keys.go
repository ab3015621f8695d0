package node

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"

	"grapevine/gossip/member"
)

var errAlone = errors.New("this node is not in a fleet: start it with --join or --gossip")

// KeysTimeout bounds a key operation over all nodes; a client must wait longer.
const KeysTimeout = 8 * time.Second

// gossipKeyBytes is the length of generated keys: AES-256.
const gossipKeyBytes = 32

// KeyList is the answer of /keys: each node's ring, keys as ids only.
type KeyList struct {
	Nodes []NodeKeys `json:"nodes"`
	Error string     `json:"error,omitempty"`
}

type NodeKeys struct {
	Node string `json:"node"`
	// Primary encrypts; all Keys are accepted.
	Primary   string   `json:"primary"`
	Keys      []string `json:"keys"`
	Persisted bool     `json:"persisted"`
	Error     string   `json:"error,omitempty"`
}

// NewGossipKey generates a key for --gossip-key-file.
func NewGossipKey() (text, id string) {
	key := make([]byte, gossipKeyBytes)
	rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key), member.FingerprintOf(key).String()
}

// ParseGossipKey returns the first key of a key file.
func ParseGossipKey(text []byte) (key []byte, err error) {
	keys, err := member.ParseKeys(text)
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

// Keys asks every node for its ring; it fails if no node could be asked.
func (n *Node) Keys(ctx context.Context) (*KeyList, error) {
	return n.rotate(ctx, member.KeyList, nil)
}

func (n *Node) rotate(ctx context.Context, op member.KeyOp, key []byte) (*KeyList, error) {
	g := n.gossip.Load()
	if g == nil {
		return nil, errAlone
	}
	ctx, cancel := context.WithTimeout(ctx, KeysTimeout)
	defer cancel()
	results, err := g.Members().RotateKey(ctx, op, key)
	if err != nil && len(results) == 0 {
		return nil, err
	}
	list := &KeyList{Nodes: make([]NodeKeys, 0, len(results)), Error: text(err)}
	for _, r := range results {
		k := NodeKeys{Node: r.Member.Name, Keys: []string{}, Persisted: r.Persisted, Error: text(r.Err)}
		for _, info := range r.Keys {
			k.Keys = append(k.Keys, info.Fingerprint.String())
			if info.Primary {
				k.Primary = info.Fingerprint.String()
			}
		}
		list.Nodes = append(list.Nodes, k)
	}
	return list, nil
}

// keyRequest names a key in base64, which install needs, or by id.
type keyRequest struct {
	Key string `json:"key"`
	ID  string `json:"id"`
}

func (n *Node) serveKeys(w http.ResponseWriter, r *http.Request) {
	list, err := n.Keys(r.Context())
	answerKeys(w, list, err)
}

// changeKeys answers with each node's result even if some failed.
func (n *Node) changeKeys(op member.KeyOp) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q keyRequest
		if refused := readBody(w, r, &q); refused != nil {
			refused.write(w)
			return
		}
		key, err := namedKey(q)
		if err != nil {
			invalid("", `send {"key":"BASE64"} or {"id":"ID"}`, "%v", err).write(w)
			return
		}
		list, err := n.rotate(r.Context(), op, key)
		answerKeys(w, list, err)
	}
}

func namedKey(q keyRequest) ([]byte, error) {
	switch {
	case (q.Key == "") == (q.ID == ""):
		return nil, errors.New("give either the key or its id")
	case q.Key != "":
		return ParseGossipKey([]byte(q.Key))
	}
	id, err := member.ParseFingerprint(strings.TrimSpace(q.ID))
	return id[:], err
}

func answerKeys(w http.ResponseWriter, list *KeyList, err error) {
	switch {
	case errors.Is(err, errAlone):
		refuse(w, http.StatusNotFound, "%v", err)
	case err != nil:
		refuse(w, http.StatusConflict, "%v", err)
	default:
		answer(w, list)
	}
}
