package member

import (
	"fmt"

	"github.com/hashicorp/memberlist"
)

// delegate has memberlist's callbacks, which run mostly under its lock and must not block.
type delegate struct{ l *List }

var (
	_ memberlist.Delegate         = delegate{}
	_ memberlist.EventDelegate    = delegate{}
	_ memberlist.AliveDelegate    = delegate{}
	_ memberlist.MergeDelegate    = delegate{}
	_ memberlist.ConflictDelegate = delegate{}
)

func (d delegate) NodeMeta(int) []byte {
	c := meta{Info: d.l.Self(), Leaving: d.l.leaving.Load()}
	b, err := c.encode()
	if err != nil {
		// Start has encoded it; only the flag has changed.
		panic(err)
	}
	return b
}

func (delegate) NotifyMsg([]byte)                {}
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

func (d delegate) NotifyJoin(n *memberlist.Node)   { d.l.table.alive(n) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.l.table.alive(n) }
func (d delegate) NotifyLeave(n *memberlist.Node)  { d.l.table.gone(n.Name) }

func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.l.Self().Name {
		return nil
	}
	info, err := d.l.table.admit(n)
	if err != nil {
		d.l.refused(info.Addr, info.Name, err)
	}
	return err
}

// Nodes with incompatible members would disagree about the fleet.
func (d delegate) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if n.State != memberlist.StateAlive || n.Name == d.l.Self().Name {
			continue
		}
		if info, err := d.l.table.admit(n); err != nil {
			d.l.refused(info.Addr, info.Name, err)
			return fmt.Errorf("not joined: %w", err)
		}
	}
	return nil
}

func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	name := clean(other.Name, maxName)
	d.l.refused(nodeAddr(other), name, &MismatchError{
		Field: FieldName, Peer: name, Mine: nodeAddr(existing), Theirs: nodeAddr(other),
	})
}
