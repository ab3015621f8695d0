package node

import (
	"context"
	"slices"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/hot"
	"grapevine.example/prefixtree"
	"grapevine.example/raftstore"
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

const (
	treePools    = 4
	treePrefixes = 32 // in all pools
	treeBackends = 8  // names of each prefix
)

// PrefixTree lists the most used prefixes that this node's requests share. It asks the tree for the engines of 32 blocks.
func (n *Node) PrefixTree() *admin.PrefixTree {
	out, at := &admin.PrefixTree{Node: n.name, Pools: []admin.PrefixTreePool{}}, now()
	names := make(map[prefixtree.Backend]string)
	for _, b := range n.backends.Roster().List {
		names[b.ID] = b.Name
	}
	hotNow := make(map[prefixtree.Hash]bool)
	if s, err := n.agreement(); err == nil {
		for _, p := range s.State().Hot {
			hotNow[prefixtree.Hash(p.Anchor)] = true
		}
	}
	var found prefixtree.Matches
	for _, s := range n.router.Shapes(treePools, treePrefixes) {
		pool := admin.PrefixTreePool{Model: s.Model, Pool: s.Labels, Requests: tenths(s.Requests), Prefixes: make([]admin.SharedPrefix, 0, len(s.Prefixes))}
		for _, p := range s.Prefixes {
			one := admin.SharedPrefix{Anchor: hot.AnchorText(p.Anchor), Tokens: tenths(p.Tokens), Share: p.Requests / s.Requests, Continued: p.Left, Hot: hotNow[p.Anchor], Backends: []string{}}
			if p.Above != 0 {
				one.Above = hot.AnchorText(p.Above)
			}
			n.tree.Match(&found, []prefixtree.Hash{p.Held}, at)
			for _, h := range found.Holders() {
				if name := names[h.Backend]; name != "" && h.Fresh > 0 {
					one.Backends = append(one.Backends, name)
				}
			}
			slices.Sort(one.Backends)
			one.Holders = len(one.Backends)
			one.Backends = one.Backends[:min(len(one.Backends), treeBackends)]
			pool.Prefixes = append(pool.Prefixes, one)
		}
		out.Pools = append(out.Pools, pool)
	}
	return out
}

func (n *Node) SwitchPrefixes(ctx context.Context, on bool) (*admin.Changed, error) {
	return n.change(ctx, raftstore.SetSwitches{Switches: raftstore.Switches{Hot: on}})
}
