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
)

// groupID names one raft group. Nodes of different groups exchange no raft messages, so groups
// cannot mix.
type groupID [16]byte

func (g groupID) String() string {
	if g == (groupID{}) {
		return ""
	}
	return hex.EncodeToString(g[:])
}

func (g groupID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText accepts the empty text as zero.
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

type identity struct {
	ID string `json:"id"`
	// Group is joined or, while Founder is set, promised.
	Group groupID `json:"group"`
	// Founder is the node that got the promise.
	Founder     string `json:"founder,omitempty"`
	FounderAddr string `json:"founder_addr,omitempty"`
	// Given lists the groups that were recovered into Group, oldest first.
	Given []groupID `json:"given,omitempty"`
	// Size is the number of servers of the recovery.
	Size int `json:"size,omitempty"`
	// Unproven: the data was recovered and may have a rival.
	Unproven bool `json:"unproven,omitempty"`
	// Rival describes the group that rules this data out.
	Rival string `json:"rival,omitempty"`
}

func (i identity) member() bool { return i.Group != groupID{} && i.Founder == "" }

func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func newGroup() (g groupID) {
	rand.Read(g[:])
	return g
}

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
	// Founding keeps a promise to itself and leaves a log.
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
