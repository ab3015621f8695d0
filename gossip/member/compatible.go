package member

import (
	"cmp"
	"fmt"
)

// Field names a difference for which two nodes refuse each other.
type Field string

// Differences for which two nodes refuse each other.
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

func (e *MismatchError) Error() string {
	switch e.Field {
	case FieldCluster:
		return fmt.Sprintf("%s belongs to another cluster (%q there, %q here): give every node the same --cluster, or take it off the --join list",
			e.Peer, e.Theirs, e.Mine)
	case FieldProtocol:
		return fmt.Sprintf("%s speaks other versions of the gossip protocol (%s there, %s here): upgrade the older one, one release at a time",
			e.Peer, e.Theirs, e.Mine)
	case FieldSecret:
		return fmt.Sprintf("%s hashes prompts with another secret (key id %s there, %s here): give every node the same --secret-file",
			e.Peer, e.Theirs, e.Mine)
	case FieldBlockBytes:
		return fmt.Sprintf("%s cuts prompts into blocks of %s bytes, this node into %s: give every node the same --block-bytes",
			e.Peer, e.Theirs, e.Mine)
	case FieldGossipKey:
		return fmt.Sprintf("%s has another gossip key (%s there, %s here): give every node the same --gossip-key-file, or install the key there with `grapevine keys install`",
			e.Peer, e.Theirs, e.Mine)
	case FieldName:
		return fmt.Sprintf("two nodes are named %q, at %s and at %s: give every node a name of its own; "+
			"if it is one node that has moved, the name is free once the old address is known to be dead", e.Peer, e.Theirs, e.Mine)
	case FieldRaftID:
		return fmt.Sprintf("node %s has the raft id of another node that is alive, at %s and at %s: one of them runs on a copy of the other's data_dir; "+
			"stop the copy, empty its data_dir and start it again; if it is one node that has moved, the id is free once the old address is known to be dead",
			e.Peer, e.Theirs, e.Mine)
	case FieldGroup:
		return fmt.Sprintf("%s is in another raft group (%s there, %s here): two fleets were founded; give one up: "+
			"stop its nodes, empty their data_dir and start them with --join", e.Peer, e.Theirs, e.Mine)
	}
	return fmt.Sprintf("%s: %s differs (%s there, %s here)", e.Peer, e.Field, e.Theirs, e.Mine)
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
