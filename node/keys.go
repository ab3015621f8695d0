package node

import (
	"context"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
)

// ChangeKeys makes every node change its ring and returns each node's result.
func (n *Node) ChangeKeys(ctx context.Context, op member.KeyOp, key []byte) (*admin.KeyList, error) {
	g := n.gossip.Load()
	if g == nil {
		return nil, admin.ErrAlone
	}
	ctx, cancel := context.WithTimeout(ctx, admin.KeysTimeout)
	defer cancel()
	results, err := g.Members().RotateKey(ctx, op, key)
	if err != nil && len(results) == 0 {
		return nil, err
	}
	list := &admin.KeyList{Nodes: make([]admin.NodeKeys, 0, len(results)), Error: text(err)}
	for _, r := range results {
		k := admin.NodeKeys{Node: r.Member.Name, Keys: []string{}, Persisted: r.Persisted, Error: text(r.Err)}
		for i, print := range r.Keys {
			k.Keys = append(k.Keys, print.String())
			if i == 0 {
				k.Primary = print.String()
			}
		}
		list.Nodes = append(list.Nodes, k)
	}
	return list, nil
}
