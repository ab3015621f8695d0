package node

import (
	"context"
	"time"

	"grapevine/node/admin"
	"grapevine/node/hot"
	"grapevine/raftstore"
)

func (n *Node) Prefixes() (*admin.PrefixList, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	state, at := s.State(), time.Now()
	list := &admin.PrefixList{Enabled: state.Switches.Hot, Prefixes: make([]admin.PrefixStatus, 0, len(state.Hot))}
	for _, p := range n.hot.Sets(state, at) {
		st := admin.PrefixStatus{
			Anchor: hot.AnchorText(p.Anchor), Tokens: uint32(p.Tokens), Replicas: uint16(p.Replicas), Backends: []string{},
			Share: p.Need.Share, Work: p.Need.Work, Other: p.Need.Other, Why: "no node reports requests that begin with it",
			AgeS: ageS(time.UnixMilli(int64(p.Since))), ChangedS: ageS(time.UnixMilli(int64(p.Changed))),
			ExpiresS: max(time.UnixMilli(int64(p.Expires)).Sub(at).Seconds(), 0),
		}
		if p.Backends != nil {
			st.Backends, st.Why = p.Backends, p.Need.Why()
		}
		list.Prefixes = append(list.Prefixes, st)
	}
	return list, nil
}

func (n *Node) SwitchPrefixes(ctx context.Context, on bool) (*admin.Changed, error) {
	return n.change(ctx, raftstore.SetSwitches{Switches: raftstore.Switches{Hot: on}})
}
