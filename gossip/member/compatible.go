package member

import (
	"cmp"
	"fmt"
)

// Field names a difference for which two nodes refuse each other.
type Field string

const (
	FieldCluster    Field = "cluster"
	FieldProtocol   Field = "protocol"
	FieldSecret     Field = "secret"
	FieldBlockBytes Field = "block bytes"
	FieldGossipKey  Field = "gossip key"
	FieldName       Field = "name"
	FieldRaftID     Field = "raft id"
	FieldGroup      Field = "raft group"
)

// MismatchError says why two nodes cannot be in one fleet, with the remedy.
type MismatchError struct {
	Field        Field
	Mine, Theirs string // keys appear as fingerprints
	Peer         string // address or name
}

// Peer, Theirs and Mine are arguments 1 to 3.
var mismatches = map[Field]string{
	FieldCluster:    "%[1]s belongs to another cluster (%[2]q there, %[3]q here): give every node the same --cluster, or take it off the --join list",
	FieldProtocol:   "%[1]s speaks other versions of the gossip protocol (%[2]s there, %[3]s here): upgrade the older one, one release at a time",
	FieldSecret:     "%[1]s hashes prompts with another secret (key id %[2]s there, %[3]s here): give every node the same --secret-file",
	FieldBlockBytes: "%[1]s cuts prompts into blocks of %[2]s bytes, this node into %[3]s: give every node the same --block-bytes",
	FieldGossipKey: "%[1]s has another gossip key (%[2]s there, %[3]s here): give every node the same --gossip-key-file, " +
		"or install the key there with `grapevine keys install`",
	FieldName: "two nodes are named %[1]q, at %[2]s and at %[3]s: give every node a name of its own; " +
		"if it is one node that has moved, the name is free once the old address is known to be dead",
	FieldRaftID: "node %[1]s has the raft id of another node that is alive, at %[2]s and at %[3]s: one of them runs on a copy of the other's data_dir; " +
		"stop the copy, empty its data_dir and start it again; if it is one node that has moved, the id is free once the old address is known to be dead",
	FieldGroup: "%[1]s is in another raft group (%[2]s there, %[3]s here): two fleets were founded; give one up: " +
		"stop its nodes, empty their data_dir and start them with --join",
}

func (e *MismatchError) Error() string {
	text, ok := mismatches[e.Field]
	if !ok {
		text = "%[1]s: " + string(e.Field) + " differs (%[2]s there, %[3]s here)"
	}
	return fmt.Sprintf(text, e.Peer, e.Theirs, e.Mine)
}

// Compatible returns a *MismatchError for the first difference, nil if there is none; it is
// symmetric.
func Compatible(a, b Info) error {
	e := &MismatchError{Peer: cmp.Or(b.Addr, b.Name)}
	switch {
	case a.Cluster != b.Cluster:
		e.Field, e.Mine, e.Theirs = FieldCluster, a.Cluster, b.Cluster
	case a.ProtocolMin > b.ProtocolMax || b.ProtocolMin > a.ProtocolMax:
		e.Field, e.Mine, e.Theirs = FieldProtocol, protocolRange(a), protocolRange(b)
	// Before the key id, which depends on the block size.
	case a.BlockBytes != b.BlockBytes:
		e.Field, e.Mine, e.Theirs = FieldBlockBytes, fmt.Sprint(a.BlockBytes), fmt.Sprint(b.BlockBytes)
	case a.KeyID != b.KeyID:
		e.Field, e.Mine, e.Theirs = FieldSecret, fmt.Sprintf("%08x", a.KeyID), fmt.Sprintf("%08x", b.KeyID)
	default:
		return nil
	}
	return e
}

func protocolRange(i Info) string {
	if i.ProtocolMin == i.ProtocolMax {
		return fmt.Sprint(i.ProtocolMin)
	}
	return fmt.Sprintf("%d to %d", i.ProtocolMin, i.ProtocolMax)
}
