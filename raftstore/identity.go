package raftstore

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

var (
	keyIdentity = []byte("identity")
	keyApplied  = []byte("applied")
	keyRoom     = []byte("room") // see tryRoom
)

// groupID names one raft group. It is drawn when a group is founded and kept by
// every member; nodes of different groups do not talk raft to each other, so two
// groups can meet and neither comes to harm.
type groupID [16]byte

func (g groupID) String() string {
	if g == (groupID{}) {
		return ""
	}
	return hex.EncodeToString(g[:])
}

// MarshalText writes the id in hex.
func (g groupID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads it.
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

// identity is who a node is, and what it has promised.
type identity struct {
	ID string `json:"id"`
	// Group is the group this node belongs to, or has promised to help to found.
	Group groupID `json:"group"`
	// Founder is the node that asked for the promise. It is empty once the node
	// belongs to the group: it founded it, was taken in, or has heard its leader.
	Founder string `json:"founder,omitempty"`
	// FounderAddr is where the founder is reached.
	FounderAddr string `json:"founder_addr,omitempty"`
	// Given are the groups that Group was recovered from, the oldest first.
	Given []groupID `json:"given,omitempty"`
	// Size is how many servers it was recovered with; 0 if it was founded.
	Size int `json:"size,omitempty"`
	// Unproven says that this node's data was recovered, and that it is not known yet
	// whether the fleet has another group.
	Unproven bool `json:"unproven,omitempty"`
	// Rival says that it has one, and which: the data is not to be used.
	Rival string `json:"rival,omitempty"`
}

// member says that the node belongs to a group for good.
func (i identity) member() bool { return i.Group != groupID{} && i.Founder == "" }

// newID draws a raft id.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, says its documentation
	return hex.EncodeToString(b[:])
}

func newGroup() (g groupID) {
	rand.Read(g[:])
	return g
}

// loadIdentity reads who the node is.
func loadIdentity(d *disk) (identity, error) {
	var id identity
	err := d.read(func(tx *bbolt.Tx) error {
		raw, err := unseal(tx.Bucket(bucketMeta), keyIdentity)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &id); err != nil {
			return fmt.Errorf("identity is damaged: %w", err)
		}
		if id.ID == "" {
			return errors.New("identity is damaged: it has no id")
		}
		return nil
	})
	if err != nil || id.Founder != id.ID {
		return id, err
	}
	// A node keeps a promise to itself by founding the group, and that leaves a log.
	last, err := (&logStore{disk: d}).LastIndex()
	if err != nil {
		return id, err
	}
	id.Founder, id.FounderAddr = "", ""
	if last == 0 {
		id.Group = groupID{}
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
	return d.write(0, func(tx *bbolt.Tx) error { return seal(tx.Bucket(bucketMeta), keyIdentity, raw) })
}
