package admin

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"grapevine.example/gossip/member"
)

// gossipKeyBytes is AES-256's.
const gossipKeyBytes = 32

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

func (s *Server) keys(r *http.Request) (*KeyList, error) {
	return keysOf(s.Service.ChangeKeys(r.Context(), member.KeyList, nil))
}

// keyRequest names a key in base64, which install needs, or by id.
type keyRequest struct {
	Key string `json:"key"`
	ID  string `json:"id"`
}

func (s *Server) changeKeys(op member.KeyOp) func(*http.Request, *keyRequest) (*KeyList, error) {
	return func(r *http.Request, q *keyRequest) (*KeyList, error) {
		key, err := namedKey(q)
		if err != nil {
			return nil, invalid("", `send {"key":"BASE64"} or {"id":"ID"}`, "%v", err)
		}
		return keysOf(s.Service.ChangeKeys(r.Context(), op, key))
	}
}

func namedKey(q *keyRequest) ([]byte, error) {
	switch {
	case (q.Key == "") == (q.ID == ""):
		return nil, errors.New("give either the key or its id")
	case q.Key != "":
		return ParseGossipKey([]byte(q.Key))
	}
	id, err := member.ParseFingerprint(strings.TrimSpace(q.ID))
	return id[:], err
}

func keysOf(list *KeyList, err error) (*KeyList, error) {
	if err != nil && !errors.Is(err, ErrAlone) {
		return nil, Refuse(http.StatusConflict, "", "", "%v", err)
	}
	return list, err
}
