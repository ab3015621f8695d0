package raftstore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

var (
	keyIdentity = []byte("identity")
	keyApplied  = []byte("applied")
)

// groupID names a raft group; raft messages of different groups never mix.
type groupID [16]byte

func (g groupID) String() string {
	if g == (groupID{}) {
		return ""
	}
	return hex.EncodeToString(g[:])
}

func (g groupID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

func (g *groupID) UnmarshalText(text []byte) error {
	*g = groupID{}
	if len(text) == 0 {
		return nil
	}
	if hex.DecodedLen(len(text)) != len(g) {
		return errors.New("a group's id is 32 hex digits")
	}
	_, err := hex.Decode(g[:], text)
	return err
}

// identity is stored in the data file. The zero Group means none yet.
type identity struct {
	ID    string  `json:"id"`
	Group groupID `json:"group"`
	// Founding holds Group's first servers, if this node founded it.
	Founding []Server `json:"founding,omitempty"`
	// Given lists Group's recovered ancestors, oldest first.
	Given []groupID `json:"given,omitempty"`
	// Size is the number of servers of the recovery.
	Size int `json:"size,omitempty"`
	// Unproven data was recovered and may have a rival.
	Unproven bool `json:"unproven,omitempty"`
	// Rival describes the group that rules this data out.
	Rival string `json:"rival,omitempty"`
}

func (i identity) proven() bool { return i.Group != groupID{} && !i.Unproven }

func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// groupOf computes the id of a group that begins with these servers.
func groupOf(origin string, conf raft.Configuration) (g groupID) {
	var lines []string
	for _, s := range conf.Servers {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", s.ID, s.Address, s.Suffrage))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(origin + "\n" + strings.Join(lines, "")))
	copy(g[:], sum[:])
	return g
}

func loadIdentity(d *disk) (identity, error) {
	var id identity
	raw, err := d.get(bucketMeta, keyIdentity)
	if err != nil {
		return id, err
	}
	if err := json.Unmarshal(raw, &id); err != nil {
		return id, fmt.Errorf("identity is damaged: %w", err)
	}
	if id.ID == "" {
		return id, errors.New("identity is damaged: it has no id")
	}
	return id, nil
}

func saveIdentity(d *disk, id identity) error {
	if d == nil {
		return nil
	}
	raw, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return d.put(bucketMeta, keyIdentity, raw)
}
